"""DA-Transformer: an encoder in which each head learns how attention depends on distance."""

from functools import partial
from typing import Literal

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.layer import Layer
from kinformer.core.pattern_parser import parse
from kinformer.members.support.wiring import Norms, Wiring
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.biases.distance_aware import DistanceAware
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV


@member(cost="L**2", needs={"length": "position=learned"})
def da_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    pattern: str = "Full()",
    position: Literal["none", "sinusoidal", "learned"] = "none",
    norm: Norms = "post",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """DA-Transformer (Wu et al., 2020, arXiv:2010.06925): distance-aware attention.

    The logits are ReLU(scores) times a learned sigmoid of the distance.

    Choose it over `bert` if some heads should read nearby tokens and others distant ones, and to see which heads do.
    The parameters `alpha` and `beta` of each block's `DistanceAware` show this, with two numbers per head. The distance
    has no sign, so only `position` can tell earlier tokens from later ones.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    pattern: expression for the tokens that each token reads, such as "Band(64)".
    position: position encoding that is added to the embeddings: "none", "sinusoidal" or "learned" with `length` rows.
    norm: "post" as in the Transformer on which the paper builds, or "pre".
    length: longest row in tokens (learned positions).
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Differences: the paper trains the encoder on labels. This member trains on the prediction of masked tokens.
    """
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)
    projection = partial(QKV, d, heads, head_dim=wiring.width)

    def block() -> Layer:
        mechanism = Softmax(parse(pattern), DistanceAware(heads), dropout=dropout, lse=False)
        return wiring.block(Attention(projection(), mechanism), MLP(d, activation="relu"))

    body = wiring.stack(block() for _ in range(check_at_least("depth", depth, 1)))
    return MLM(vocab, d, body, position=wiring.added_position(), scale=wiring.scale, dropout=dropout)


NO_SIDE = "the distance has no sign, and no other part separates earlier from later tokens"
EXAMPLES = (
    Example(lambda: da_transformer(d=16, depth=2, heads=2, vocab=11), {"learns": NO_SIDE}),
    lambda: da_transformer(
        d=16, depth=1, heads=2, pattern="Band(5)", position="learned", norm="pre", length=64, vocab=11
    ),
)
