"""RFA: attention by random features with a past that fades through a learned gate."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.feature_map import FeatureMap
from kinformer.members.support.lane_decoder import build_lane_decoder
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.maps.arc_cosine import ArcCosine
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms.linear import AdditiveUpdate, GatedUpdate, LinearAttention
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV


@member(cost="L * features", needs={"redraw, length": "lanes=false", "tau, form": "kernel=gaussian"})
def rfa(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    features: int = 64,
    gate: bool = True,
    length: int = 1024,
    lanes: bool = False,
    vocab: int = 256,
    dropout: float = 0.0,
    redraw: int | None = 1,
    tau: float = 1.0,
    kernel: Literal["gaussian", "arc-cosine"] = "gaussian",
    form: Literal["paper", "published"] = "paper",
) -> LM:
    """Random feature attention (Peng et al., 2021, arXiv:2103.02143), as a decoder.

    Choose it over `performer` if recent tokens matter more. Blocks are pre-norm, and the past is a state of fixed size.
    A training step of one block (width 256, batch 1, on a CPU) is faster than `gpt`'s from about 5,600 tokens on, and
    1.7 times as fast at 16,384 (bench/README.md).

    d: model width.
    depth: number of blocks; each draws its own directions.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    features: number of random directions per head; more come closer to the kernel.
    gate: each head learns what to forget at each token, the paper's RFA-Gate; False sums all tokens, its RFA.
    length: longest row in tokens.
    lanes: train on consecutive text and carry the sums from batch to batch; positions are then sinusoids, which have no
        end.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs.
    redraw: number of training steps after which the directions are drawn again; 1 as in the paper, None for never. With
        `lanes` they stay, because the carried sums belong to them.
    tau: divisor of the directions, the initial temperature, which each head then learns ("gaussian").
    kernel: "gaussian" is the softmax kernel of unit vectors, by sines and cosines. "arc-cosine" is a flatter kernel by
        rectified directions with one feature each. The paper gives it twice as many, and heads learn no temperature
        with it.
    form: "published" has the numbers of the authors' causal code for the Gaussian kernel: features are multiplied by
        0.1, 1e-3 is added to lengths, and divisors are at least 1. This shrinks the results of short rows.
    """
    check_option("kernel", kernel, ("gaussian", "arc-cosine"))
    check_at_least("features", features, 1)
    width, anew = resolve_head_dim(d, heads, head_dim), None if lanes else redraw

    def features_of(seed: int) -> FeatureMap:
        if kernel == "arc-cosine":
            return ArcCosine(heads, width, features, redraw=anew, seed=seed)
        if check_option("form", form, ("paper", "published")) == "paper":
            return RandomFourier(heads, width, features, tau=tau, redraw=anew, seed=seed)
        return RandomFourier(heads, width, features, scale=0.1, eps=1e-3, floor=1.0, tau=tau, redraw=anew, seed=seed)

    def block(seed: int) -> PreNorm:
        mechanism = LinearAttention(features_of(seed), GatedUpdate() if gate else AdditiveUpdate())
        return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism), MLP(d), dropout=dropout)

    body = Stack([block(n) for n in range(check_at_least("depth", depth, 1))], LayerNorm(d))
    return build_lane_decoder(vocab, d, heads, body, length=length, lanes=lanes, dropout=dropout)


EXAMPLES = (
    lambda: rfa(d=16, depth=2, heads=2, features=48, length=64, vocab=11),
    lambda: rfa(d=16, depth=1, heads=2, features=48, gate=False, redraw=None, length=64, vocab=11),
    lambda: rfa(d=16, depth=1, heads=2, features=16, kernel="arc-cosine", length=64, vocab=11),
    lambda: rfa(d=16, depth=1, heads=2, features=48, form="published", lanes=True, vocab=11),
)
