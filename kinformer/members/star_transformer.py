"""Star-Transformer: tokens on a ring around one relay."""

from typing import Literal

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.models.mlm import MLM
from kinformer.nn.depth.star import PADDED, Outgoing, PublishedStarRound, PublishedStarRounds, StarRound, StarRounds
from kinformer.nn.positions.learned import Learned

Form = Literal["paper", "published"]


@member(needs={"length": "position=learned"})
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
    """Star-Transformer (Guo et al., 2019, arXiv:1902.09113): a token reads its neighbours and a relay, the relay all.

    Choose it over `bert` for a cost that grows with the length of a row alone, and where little data wants short paths
    more than many pairs. Trained by hiding tokens; `star_classifier` sorts texts. A step of training (width 256, batch
    1, on a CPU) is faster than `bert`'s at 1,024 tokens already, at 4,096 2.5 times as fast (bench/README.md).

    d: width of a token and of the relay.
    depth: rounds, the paper's T, each with weights of its own.
    heads: heads of attention.
    head_dim: the width of a head, d / heads unless given.
    form: "paper": LN(ReLU(..)) of tokens and relay, a closed ring. "published", the authors' code: LeakyReLU, a norm of
        tokens before the ring alone, keys of zeros beyond the ends of a row, and padding on the ring.
    position: learned ones are added to what comes in; without, neighbours alone tell order.
    length: the longest row.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    body = star(d, depth, heads, head_dim, form, dropout)
    return MLM(vocab, d, body, position=Learned(d, length) if position == "learned" else None, dropout=dropout)


def star(
    d: int, depth: int, heads: int, head_dim: int | None, form: Form, dropout: float, out: Outgoing = "tokens"
) -> StarRounds:
    """The rounds of either form."""
    rounds, of = (StarRounds, StarRound) if form == "paper" else (PublishedStarRounds, PublishedStarRound)
    return rounds([of(d, heads, head_dim) for _ in range(check_at_least("depth", depth, 1))], out=out, dropout=dropout)


EXAMPLES = (
    lambda: star_transformer(d=16, depth=2, heads=2, length=64, vocab=11),
    Example(
        lambda: star_transformer(d=16, depth=2, heads=2, form="published", position="none", vocab=11), breaks=PADDED
    ),
)
