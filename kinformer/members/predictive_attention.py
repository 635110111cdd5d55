"""Predictive and Evolving Attention: scores from a convolution of the scores of the block below."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.evolving import EvolvingAttention
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.predictive import PredictiveAttention
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

Scores = Literal["evolving", "predictive"]
Form = Literal["encoder", "decoder"]


@member(cost="L**2 * size**2", needs={"scores, alpha, size, slope": "depth>1", "beta": "depth>1 and scores=evolving"})
def predictive_attention(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    scores: Scores = "evolving",
    alpha: float = 0.5,
    beta: float = 0.5,
    size: int = 3,
    slope: float = 0.01,
    form: Form = "encoder",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM | LM:
    """Predictive and Evolving Attention (Wang et al., 2021, arXiv:2102.12895): attention maps as pictures.

    A block convolves the scores of the block below, all heads together. The lowest block is an ordinary one, as in the
    authors' code. Choose it over `realformer` if attention patterns have a shape among neighbouring pairs. Every block
    reads the same pairs of tokens. Matrices of scores are stored, so memory grows with the square of a row, and time as
    L^2 (d + heads^2 size^2). Otherwise it is like `gpt` and `bert`: pre-norm blocks and learned positions.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    scores: "evolving" mixes the scores from below with the block's own and convolves the mixture. "predictive", the
        earlier form (Wang et al., 2021, https://openreview.net/forum?id=YQVjbJPnPc9), convolves only the scores from
        below.
    alpha: with "evolving" the fraction of the convolved mixture that comes from below; with "predictive" the fraction
        of the scores that is the block's own.
    beta: fraction of the scores that is convolved ("evolving").
    size: rows and columns of the convolution; odd in an encoder.
    slope: slope of negative values after the convolution, the authors' rectifier; 1 means none, as in the paper's
        equation.
    form: "encoder" predicts masked tokens. "decoder" generates text: convolutions then end at the pair itself, and
        decoding stores the last rows of scores besides the keys.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """
    causal, evolving = (
        check_option("form", form, Form) == "decoder",
        check_option("scores", scores, Scores) == "evolving",
    )
    if not causal and check_at_least("size", size, 1) % 2 == 0:
        raise ValueError(f"size={size} is even, so the kernel has no centre; give an odd size, or form=decoder")
    pattern: Pattern = Causal() if causal else Full()
    kernel: Literal["causal", "centred"] = "causal" if causal else "centred"

    def mechanism(n: int) -> Mechanism:
        if not n:
            return Explicit(pattern, up=True, dropout=dropout)
        if evolving:
            return EvolvingAttention(
                pattern, heads, alpha=alpha, beta=beta, size=size, kernel=kernel, slope=slope, dropout=dropout
            )
        return PredictiveAttention(pattern, heads, alpha=alpha, size=size, kernel=kernel, slope=slope, dropout=dropout)

    blocks = [
        PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism(n)), MLP(d), dropout=dropout)
        for n in range(check_at_least("depth", depth, 1))
    ]
    body = Stack(blocks, LayerNorm(d))
    if causal:
        return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout)
    return MLM(vocab, d, body, position=Learned(d, length), dropout=dropout)


EXAMPLES = (
    lambda: predictive_attention(d=16, depth=3, heads=2, form="decoder", length=64, vocab=11),
    lambda: predictive_attention(
        d=16, depth=2, heads=2, scores="predictive", form="decoder", size=2, length=64, vocab=11
    ),
    lambda: predictive_attention(d=16, depth=2, heads=2, scores="predictive", length=64, vocab=11),
)
