"""Adaptive span: segments as in Transformer-XL, with heads that learn how far back they look."""

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


@member(cost="L * longest", recipe=Recipe(lr=4e-3), needs={"ramp, penalty": "spans=static|dynamic"})
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
    """Adaptive attention span (Sukhbaatar et al., 2019, arXiv:1905.07799): each head learns its span.

    Choose it for long contexts that only a few heads need.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    segment: tokens of a segment; the memory of earlier hidden states comes before it.
    longest: largest possible span, in positions.
    spans: "static" learns one span per head. A layer then stores and reads only positions within its longest span.
        "dynamic" computes a span per head and token, so each layer stores all `longest` positions. Any other text is a
        fixed masking function, described below.
    ramp: width of the soft edge of a span, in positions (learned spans).
    itself: a token also reads itself; False as in the paper.
    nearest: distance i - j at which x, the argument of the masking function, is 0. The paper has x = i - j (0); the
        published code has x = i - j - 1 (1).
    penalty: loss weight of the mean learned span; a larger weight makes spans shorter.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights, feed-forward units and sublayer outputs.

    A fixed masking function multiplies the weights of keys up to `longest`, which are then renormalised (Lin et al.,
    2021, arXiv:2106.04554, section 4.6.2). Write `spans` as a formula, such as "1 / (1 + x)", "exp(-x / 16)" or
    "x < 9", or as "Step(4, 16, 64, 256)" with one window per head.

    As in the authors' code, all layers share one table of distances, the blocks are post-norm, and the output head has
    a matrix of its own.
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
TABLE = {"*.bias.biases.0.keys": "all layers share the relative position vectors, as in the authors' code"}
EXAMPLES = (
    Example(lambda: adaptive_span(**TINY, ramp=8), shares=TABLE),
    Example(lambda: adaptive_span(**TINY, spans="dynamic", ramp=3, itself=True), shares=TABLE),
    Example(lambda: adaptive_span(**TINY, spans="1 / (1 + x)"), shares=TABLE),
    Example(lambda: adaptive_span(**TINY, ramp=8, head_dim=6, nearest=1), shares=TABLE),
)
