"""Random heads for a mechanism, what it reads of them, and the softmax of few keys by hand."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism

# two rows of 7 and 9 tokens: padding stands before and after the tokens of the first
POS = torch.tensor([[-1, 0, 1, 2, 3, 4, 5, 6, -1], list(range(9))])


class Heads(NamedTuple):
    """Queries, keys and values of every head, and numbers of each key head under their names."""

    q: Float[Tensor, "B H T K"]
    k: Float[Tensor, "B G T K"]
    v: Float[Tensor, "B G T V"]
    extras: dict[str, Float[Tensor, "B G T n"]]


def random_heads(heads: int = 2, groups: int = 2, **widths: int) -> Heads:
    """Heads for the tokens of POS: queries and keys of width 4, values of width 3, extras of the given widths."""
    rows, length = POS.shape
    extras = {name: torch.randn(rows, groups, length, width) for name, width in widths.items()}
    q, k, v = (torch.randn(rows, n, length, width) for n, width in ((heads, 4), (groups, 4), (groups, 3)))
    return Heads(q, k, v, extras)


def run(mechanism: Mechanism, heads: Heads, pos: Tensor = POS, **query_sides: Tensor) -> Out:
    """The output of a mechanism whose keys are those of the sequence itself.

    Padding holds finite numbers, as in a layer whose projections have biases.
    """
    ctx = Context(pos, run=True, is_clean=True)
    keys = Keys(heads.k, heads.v, ctx.by_head, heads.extras)
    return mechanism(Queries(heads.q, ctx.by_head, query_sides), keys, None, ctx)


def softmax_sum(scores: list[Tensor], values: list[Tensor]) -> Tensor:
    """The mean of a query's values, weighed by the softmax of its scores."""
    weights = [score.exp() for score in scores]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


def real_tokens(row: int) -> list[int]:
    """The columns of a row that hold tokens, in the order of their positions."""
    return (POS[row] >= 0).nonzero().flatten().tolist()
