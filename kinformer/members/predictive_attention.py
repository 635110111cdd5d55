"""Predictive and Evolving Attention: scores that a convolution makes of those of the block beneath."""

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


@member(needs={"scores, alpha, size, slope": "depth>1", "beta": "depth>1 and scores=evolving"})
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
    """Predictive and Evolving Attention (Wang et al., 2021, arXiv:2102.12895): attention maps seen as pictures.

    Choose it over `realformer` where patterns of attention have a form among neighbouring pairs: a block convolves the
    scores of the block beneath, all heads together. The lowest block, which has none beneath, is a plain one, as in the
    authors' code. Every block has the same pattern; matrices of scores are held, so memory grows with the square of a
    row, and time as L^2 (d + heads^2 size^2). `gpt` and `bert` otherwise: pre-norm blocks and learned positions.

    d: the width of the model.
    depth: blocks.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    scores: "evolving" mixes scores from beneath with the block's own and convolves both; "predictive", the form before
        it, convolves those from beneath alone.
    alpha: of "evolving", how much of what is convolved comes from beneath; of "predictive", how much of the scores is
        the block's own.
    beta: of "evolving", how much of the scores is convolved.
    size: rows and columns of the convolution; odd for an encoder.
    slope: of what is below 0 after the convolution, the authors' rectifier; 1 for none, as the paper's equation has it.
    form: "encoder" fills in hidden tokens; "decoder" writes text: convolutions then end at the pair itself, and
        decoding keeps the last rows of scores beside the keys.
    length: the longest row it can read.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    causal, evolving = (
        check_option("form", form, Form) == "decoder",
        check_option("scores", scores, Scores) == "evolving",
    )
    if not causal and check_at_least("size", size, 1) % 2 == 0:
        raise ValueError(f"size={size} has no middle; give an odd one, or form=decoder")
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
