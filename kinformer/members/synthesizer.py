"""Synthesizer: attention weights from single tokens or positions, not from pairs of tokens."""

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


@member(
    cost="L**2",
    needs={"units": "scores=dense", "first, second": "scores=factorised_dense", "rank": "scores=factorised_random"},
)
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
    """Synthesizer (Tay et al., 2020, arXiv:2005.00743): attention weights without products of tokens.

    Choose it to see how much attention a task needs: if a random table suffices, positions determine which tokens
    belong together. Without products of queries and keys it cannot find tokens by content. The default, a random table
    mixed with the product, did best in the paper's translation. Otherwise it is like `gpt` and `bert`: pre-norm blocks
    and learned positions. Scores of all pairs are stored, so time and memory grow with the square of the row. In `gpt`
    only the time does.

    d: model width.
    depth: number of blocks; each has its own tables.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    scores: source of the scores, one kind or a tuple of kinds that are mixed. The kind "dense" computes them from the
        token with two matrices. The kind "factorised_dense" computes them from it with two short vectors. The kind
        "random" is a trained table, and "fixed_random" is a random table that is not trained. The kind
        "factorised_random" is a trained table of low rank. The kind "product" has queries and keys; the others have
        none.
    weights: weights of a mixture: "learned", which sum to 1, or "sum", which adds the scores unchanged.
    units: hidden units of "dense" per head, between its two matrices; d / heads if None.
    first: width of the first factor of "factorised_dense", a divisor of the length. If None, it is the largest divisor
        up to the square root.
    second: second factor of "factorised_dense": "tiled" like the first, as in the paper's text, or "repeated", which
        distinguishes all positions.
    rank: rank of "factorised_random"; 8 in the paper.
    form: "decoder" generates text; "encoder" predicts masked tokens.
    length: longest row in tokens: rows and columns of tables, and positions; 512 in the authors' code.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """
    kinds = scores if isinstance(scores, tuple) else (scores,)
    if not kinds:
        raise ValueError("scores=() is empty; give one or more, such as random,product")
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
    """Return the largest divisor of `length` up to its square root."""
    return max(n for n in range(1, isqrt(check_at_least("length", length, 1)) + 1) if length % n == 0)


DRAWN = {"learns": "fixed random tables select no single token: accuracy 0.83 after the law's 800 steps"}
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
