"""Star-Transformer: tokens on a ring around one relay."""

from typing import Literal

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.models.mlm import MLM
from kinformer.nn.depth.star import PADDED, Outgoing, PublishedStarRound, PublishedStarRounds, StarRound, StarRounds
from kinformer.nn.positions.learned import Learned

Form = Literal["paper", "published"]


@member(cost="L", needs={"length": "position=learned"})
def star_transformer(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    form: Form = "paper",
    position: Literal["learned", "none"] = "learned",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """Star-Transformer (Guo et al., 2019, arXiv:1902.09113): a ring of tokens and one relay.

    Each token reads its neighbours and the relay, and the relay reads all tokens. Choose it over `bert` for a cost
    linear in the row, and for little data, which benefits from short paths more than from many pairs. The model trains
    on the prediction of masked tokens; `star_classifier` classifies texts. A training step (width 256, batch 1, on a
    CPU) is faster than `bert`'s already at 1,024 tokens, and 2.5 times as fast at 4,096 (bench/README.md).

    d: width of a token and of the relay.
    depth: number of rounds, the paper's T; each has its own weights.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    form: variant of a round. With "paper" it has LN(ReLU(..)) of tokens and relay, and a closed ring. With "published",
        as in the authors' code, it has LeakyReLU, and a norm of the tokens only before the ring. It also has zero keys
        beyond the ends of a row, and padding on the ring.
    position: "learned" positions are added to the embeddings; with "none" only the neighbours encode order.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, and of tokens and relay after each round.
    """
    body = star(d, depth, heads, head_dim, form, dropout)
    return MLM(vocab, d, body, position=Learned(d, length) if position == "learned" else None, dropout=dropout)


def star(
    d: int, depth: int, heads: int, head_dim: int | None, form: Form, dropout: float, out: Outgoing = "tokens"
) -> StarRounds:
    """Build the rounds of a Star-Transformer in the paper's or the published form.

    d, depth, heads, head_dim, form, dropout: as in `star_transformer`.
    out: vectors that the rounds return, such as "tokens".
    """
    rounds, of = (StarRounds, StarRound) if form == "paper" else (PublishedStarRounds, PublishedStarRound)
    return rounds([of(d, heads, head_dim) for _ in range(check_at_least("depth", depth, 1))], out=out, dropout=dropout)


EXAMPLES = (
    lambda: star_transformer(d=16, depth=2, heads=2, length=64, vocab=11),
    Example(
        lambda: star_transformer(d=16, depth=2, heads=2, form="published", position="none", vocab=11), breaks=PADDED
    ),
)
