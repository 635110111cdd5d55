"""Synthesizer: Transformers whose attention compares no tokens: weights by a token alone, or by positions alone."""

from math import isqrt
from typing import Literal

from kinformer.core.checks import check_at_least, check_option, check_unused, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.score import Score
from kinformer.core.scores.product import Product
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.value_projection import ValueProjection
from kinformer.nn.scores.factorised_dense import FactorisedDense, Second
from kinformer.nn.scores.factorised_random import FactorisedRandom
from kinformer.nn.scores.mixture import Mixture, Weights
from kinformer.nn.scores.random_synthesizer import RandomSynthesizer
from kinformer.nn.scores.synthesizer import DenseSynthesizer

Kind = Literal["dense", "factorised_dense", "random", "fixed_random", "factorised_random", "product"]
Form = Literal["decoder", "encoder"]


@member(needs={"units": "scores=dense", "first, second": "scores=factorised_dense", "rank": "scores=factorised_random"})
def synthesizer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    scores: Kind | tuple[Kind, ...] = ("random", "product"),
    weights: Weights = "learned",
    units: int | None = None,
    first: int | None = None,
    second: Second = "tiled",
    rank: int = 8,
    form: Form = "decoder",
    length: int = 512,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM | MLM:
    """Synthesizer (Tay et al., 2020, arXiv:2005.00743): attention weights that come from no product of two tokens.

    Choose it to see what a task needs of attention: where a random table does, positions say what belongs together. A
    synthesizer by itself looks nothing up by content; the mixture with the product, the default, did best in the paper.
    `gpt` and `bert` otherwise: pre-norm blocks and learned positions. Scores of all pairs are held, so time and memory
    grow with the square of the row, as a product's time does.

    d: the width of the model.
    depth: blocks; each has tables of its own.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    scores: where scores come from, one kind or several that are mixed: "dense", of the token alone by two matrices;
        "factorised_dense", of it by two short vectors; "random", a trained table; "fixed_random", one that stays as it
        was drawn; "factorised_random", a trained one of low rank; "product", queries and keys. Without a product there
        are no queries and no keys.
    weights: of a mixture: "learned", which sum to 1, or a "sum", of scores as they are.
    units: of a "dense" one, between its two matrices, by head; d / heads unless given.
    first: the width of the first factor of a "factorised_dense", which divides the length; its largest divisor up to
        the root unless given.
    second: its second factor "tiled" as the first, the paper's text, or "repeated", which tells all positions apart.
    rank: of a "factorised_random"; 8 in the paper.
    form: a "decoder" that writes text, or an "encoder" that fills in hidden tokens.
    length: the longest row: rows and columns of tables, and positions; 512 in the authors' code.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    kinds = scores if isinstance(scores, tuple) else (scores,)
    if not kinds:
        raise ValueError("scores=() has none; give one or more, such as random,product")
    width, causal = resolve_head_dim(d, heads, head_dim), check_option("form", form, Form) == "decoder"
    if len(kinds) == 1:
        check_unused(f"scores={kinds[0]}", weights=(weights, "learned"))

    def score(kind: Kind) -> Score:
        if kind == "dense":
            return DenseSynthesizer(heads, length, width if units is None else units)
        if kind == "factorised_dense":
            return FactorisedDense(heads, length, _divisor(length) if first is None else first, second=second)
        if kind == "factorised_random":
            return FactorisedRandom(heads, length, rank)
        return Product() if kind == "product" else RandomSynthesizer(heads, length, trained=kind == "random")

    def block() -> PreNorm:
        scores = [score(kind) for kind in kinds]
        mixed = scores[0] if len(scores) == 1 else Mixture(*scores, weights=weights)
        mechanism = Softmax(Causal() if causal else Full(), score=mixed, dropout=dropout, lse=False)
        projection = (
            QKV(d, heads, head_dim=head_dim) if "product" in kinds else ValueProjection(d, heads, v_dim=head_dim)
        )
        return PreNorm(Attention(projection, mechanism), MLP(d), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))], LayerNorm(d))
    if causal:
        return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout)
    return MLM(vocab, d, body, position=Learned(d, length), dropout=dropout)


def _divisor(length: int) -> int:
    """The largest divisor up to the root."""
    return max(n for n in range(1, isqrt(check_at_least("length", length, 1)) + 1) if length % n == 0)


DRAWN = {"learns": "tables that stay as they were drawn read no token alone: 0.83 of places after the law's 800 steps"}
EXAMPLES = (
    lambda: synthesizer(d=16, depth=2, heads=2, length=64, vocab=11),
    lambda: synthesizer(d=16, depth=1, heads=2, scores="dense", length=64, vocab=11, form="encoder"),
    lambda: synthesizer(d=16, depth=1, heads=2, scores=("factorised_random", "factorised_dense"), length=60, vocab=11),
    lambda: synthesizer(
        d=16, depth=1, heads=2, scores="factorised_dense", first=4, second="repeated", length=64, vocab=11
    ),
    lambda: synthesizer(
        d=16, depth=1, heads=2, scores=("dense", "fixed_random"), units=3, weights="sum", length=64, vocab=11
    ),
    lambda: synthesizer(d=16, depth=1, heads=2, scores="random", length=64, vocab=11),
    Example(lambda: synthesizer(d=16, depth=1, heads=2, scores="fixed_random", length=64, vocab=11), breaks=DRAWN),
    lambda: synthesizer(d=16, depth=1, heads=2, scores="factorised_random", length=64, vocab=11),
    lambda: synthesizer(d=16, depth=1, heads=2, scores="product", length=64, vocab=11),
)
