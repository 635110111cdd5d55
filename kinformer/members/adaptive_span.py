"""Adaptive span: a Transformer-XL's segments, and heads that learn how far they look."""

from typing import Any

from kinformer.core.checks import check_at_least, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.patterns.causal import Causal
from kinformer.core.training_recipe import Recipe
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.biases.adaptive_span import AdaptiveSpan, DynamicSpan
from kinformer.nn.biases.masking import Masking, Nearest, parse_masking
from kinformer.nn.biases.relative import Relative
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.restricted import Restricted
from kinformer.nn.memories.hidden import Hidden
from kinformer.nn.projections.qkv import QKV


@member(recipe=Recipe(lr=4e-3), needs={"ramp, penalty": "spans=static|dynamic"})
def adaptive_span(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    segment: int = 64,
    longest: int = 256,
    spans: str = "static",
    ramp: int = 32,
    itself: bool = False,
    nearest: Nearest = 0,
    penalty: float = 2e-6,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Adaptive attention span (Sukhbaatar et al., 2019, arXiv:1905.07799): each head learns how far back it looks.

    Choose it for long contexts that few heads need: with "static" `spans`, learned by head and drawn together by
    `penalty`, a layer keeps and reads no more than its longest span still reaches; "dynamic" ones are decided by head
    and token and keep all `longest`. As in the paper a token reads those before it and not `itself`. As in the authors'
    code all layers share one table of distances. The masking function's x is i - j, or i - j - 1 with `nearest=1`, as
    in the published code; blocks are post-norm and the head has its own matrix, as in that code.

    `spans` may also be a fixed masking function. It multiplies the weights of keys up to `longest`, which are then
    renormalised (Lin et al., 2021, arXiv:2106.04554, section 4.6.2). Write a formula, such as "1 / (1 + x)",
    "exp(-x / 16)" or "x < 9", or "Step(4, 16, 64, 256)" with one window per head.
    """
    width = resolve_head_dim(d, heads, head_dim)
    table = Relative(width, longest, values=False, reach=(longest, 0 if itself else -1))

    def mask() -> Masking:
        if spans == "static":
            return AdaptiveSpan(heads, longest, ramp=ramp, nearest=nearest, itself=itself)
        if spans == "dynamic":
            return DynamicSpan(longest, ramp=ramp, nearest=nearest, itself=itself)
        return parse_masking(spans, heads, longest, nearest=nearest, itself=itself)

    def block() -> PostNorm:
        mechanism = Restricted(Causal(), mask(), table, dropout=dropout)
        projection = QKV(d, heads, head_dim=head_dim, bias=False)
        attention = Attention(projection, mechanism, memory=Hidden(segment, mechanism.lookback))
        return PostNorm(attention, MLP(d, activation="relu", dropout=dropout), dropout=dropout)

    body = Stack(block() for _ in range(check_at_least("depth", depth, 1)))
    penalties = {"span": penalty} if spans in ("static", "dynamic") else {}
    return LM(vocab, d, body, scale=d**0.5, tie=False, dropout=dropout, penalties=penalties, lanes=True)


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "segment": 5, "longest": 8, "vocab": 11}
TABLE = {"*.bias.biases.0.keys": "all layers share the vectors of distances, as in the authors' code"}
EXAMPLES = (
    Example(lambda: adaptive_span(**TINY, ramp=8), shares=TABLE),
    Example(lambda: adaptive_span(**TINY, spans="dynamic", ramp=3, itself=True), shares=TABLE),
    Example(lambda: adaptive_span(**TINY, spans="1 / (1 + x)"), shares=TABLE),
    Example(lambda: adaptive_span(**TINY, ramp=8, head_dim=6, nearest=1), shares=TABLE),
)
