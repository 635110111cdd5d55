"""Performer: softmax attention estimated by positive random features, and other kernels."""

from typing import Literal

from kinformer.core.checks import check_at_least, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.feature_map import FeatureMap
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.members.support.lane_decoder import build_lane_decoder
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.maps.favor import FAVOR, SCALED, Stabiliser
from kinformer.nn.maps.generalised import GeneralisedKernel
from kinformer.nn.maps.random_features import Lengths
from kinformer.nn.maps.trigonometric import Trigonometric
from kinformer.nn.mechanisms.delayed import Delayed
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.band import Band
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

Form = Literal["decoder", "encoder"]
Kernel = Literal["softmax", "hyperbolic", "trigonometric", "relu", "sigmoid", "abs", "softplus", "exp"]


@member(
    cost="L * features",
    needs={
        "redraw, length": "lanes=false",
        "lanes": "form=decoder",
        "lengths": "orthogonal=true",
        "eps": "kernel!=trigonometric",
        "stabiliser": "kernel=softmax|hyperbolic",
        "window": "form=decoder and kernel=softmax|hyperbolic",
    },
)
def performer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    features: int = 64,
    redraw: int | None = 1000,
    length: int = 1024,
    lanes: bool = False,
    vocab: int = 256,
    dropout: float = 0.0,
    kernel: Kernel = "softmax",
    orthogonal: bool = True,
    lengths: Lengths = "normal",
    eps: float | None = None,
    form: Form = "decoder",
    stabiliser: Stabiliser = "token",
    window: int | None = None,
) -> LM | MLM:
    """Performer (Choromanski et al., 2020, arXiv:2009.14794): FAVOR+, softmax attention at linear cost.

    Choose it over `linear_transformer` to stay close to softmax attention. Random features estimate its kernel, and the
    past is a state of fixed size. A training step (width 256, batch 1, on a CPU) is faster than `gpt`'s from about
    1,800 tokens on, and 4.1 times as fast at 16,384 (bench/README.md).

    d: model width.
    depth: number of blocks; each draws its own directions.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    features: number of random directions, which the heads share; more give a better estimate. The authors have 256.
    redraw: number of training steps after which the directions are drawn again; None for never. With `lanes` they stay,
        because the carried sums belong to them.
    length: longest row in tokens.
    lanes: train on consecutive text and carry the sums from batch to batch; positions are then sinusoids, which have no
        end.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs.
    kernel: "softmax" and "hyperbolic" estimate the softmax kernel; "hyperbolic" uses each direction with both signs.
        "trigonometric" estimates it by sines and cosines, which the paper finds unstable; it has no eps. The other
        names are functions f of generalised attention. Its features are f of the products of a vector with the
        directions; "relu" is the paper's Performer-ReLU.
    orthogonal: draw orthogonal directions; False draws each one independently.
    lengths: lengths of orthogonal directions: "normal" draws them like lengths of normal vectors, and "equal" makes all
        of them sqrt(d / heads).
    eps: number added to features. The default is 1e-6 for estimates of softmax and 1e-3 for other kernels, as in the
        authors' TensorFlow code; their JAX code has 1e-4 for softmax.
    form: "decoder" generates text; "encoder" predicts masked tokens. The paper has both.
    stabiliser: maximum that is subtracted in exp(...) of keys, to keep it small: the largest exponent of each "token",
        or, as in the authors' code, of the whole "sequence". With "sequence" a decoder's eps depends on later tokens.
    window: number of last tokens that are read exactly, as by softmax; only earlier tokens are estimated. None, as in
        the paper, estimates all tokens, and is much further from softmax if attention is sharp. It needs form "decoder"
        and kernel "softmax" or "hyperbolic".

    Differences: the paper changes only the attention. Blocks here are pre-norm with learned positions.
    """
    check_at_least("features", features, 1)
    width = resolve_head_dim(d, heads, head_dim)
    anew = None if lanes else redraw

    def features_of(n: int) -> FeatureMap:
        if kernel == "softmax" or kernel == "hyperbolic":  # noqa: PLR1714  (mypy narrows by this alone)
            return FAVOR(
                width,
                features,
                eps=1e-6 if eps is None else eps,
                hyperbolic=kernel == "hyperbolic",
                orthogonal=orthogonal,
                lengths=lengths,
                redraw=anew,
                seed=n,
                stabiliser=stabiliser,
            )
        if kernel == "trigonometric":
            return Trigonometric(width, features, orthogonal=orthogonal, lengths=lengths, redraw=anew, seed=n)
        return GeneralisedKernel(
            width,
            features,
            f=kernel,
            eps=1e-3 if eps is None else eps,
            orthogonal=orthogonal,
            lengths=lengths,
            redraw=anew,
            seed=n,
        )

    def mechanism(map: FeatureMap) -> Mechanism:
        if form == "encoder":
            return FullLinearAttention(map)
        if window is None:
            return LinearAttention(map)
        near = Softmax(Causal() & Band(check_at_least("window", window, 1) - 1))
        return Merged(near, Delayed(LinearAttention(map), window))

    def block(n: int) -> PreNorm:
        return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism(features_of(n))), MLP(d), dropout=dropout)

    body = Stack([block(n) for n in range(check_at_least("depth", depth, 1))], LayerNorm(d))
    if form == "encoder":
        return MLM(vocab, d, body, position=Learned(d, length), dropout=dropout)
    return build_lane_decoder(vocab, d, heads, body, length=length, lanes=lanes, dropout=dropout)


SEQUENCE = dict.fromkeys(("chunk", "gradients", "peek"), SCALED)
EXAMPLES = (
    lambda: performer(d=16, depth=2, heads=2, features=12, redraw=2, length=64, vocab=11),
    lambda: performer(d=16, depth=1, heads=2, features=12, kernel="relu", lengths="equal", length=64, vocab=11),
    lambda: performer(d=16, depth=1, heads=2, features=6, kernel="hyperbolic", form="encoder", length=64, vocab=11),
    lambda: performer(d=16, depth=1, heads=2, features=12, window=3, length=64, vocab=11),
    lambda: performer(
        d=16, depth=1, heads=2, features=12, kernel="trigonometric", orthogonal=False, redraw=None, length=64, vocab=11
    ),
    Example(
        lambda: performer(d=16, depth=1, heads=2, features=12, stabiliser="sequence", lanes=True, eps=1e-4, vocab=11),
        breaks=SEQUENCE,
    ),
    lambda: performer(d=16, depth=1, heads=2, features=12, kernel="sigmoid", length=64, vocab=11),
    lambda: performer(d=16, depth=1, heads=2, features=12, kernel="abs", length=64, vocab=11),
    lambda: performer(d=16, depth=1, heads=2, features=12, kernel="softplus", length=64, vocab=11),
    lambda: performer(d=16, depth=1, heads=2, features=12, kernel="exp", length=64, vocab=11),
)
