"""Synthesizer: scores without a product of queries and keys, from tables of so many positions."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes
from kinformer.core.request import Request
from kinformer.core.score import Score


class Synthesizer(Score):
    """What makes a score of a pair without comparing the two: by the query alone, by its position, or by nothing.

    heads: of the layer.
    length: positions that its tables have; shorter rows read the first of them. A model slides beyond its table of
        learned positions, so give that the same length.

    Errors: ValueError for a layer of other heads, when it is built; IndexError for a position beyond the length.
    """

    def __init__(self, heads: int, length: int):
        super().__init__()
        self.heads, self.length = check_at_least("heads", heads, 1), check_at_least("length", length, 1)

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        self._check(sizes.heads)
        return {}

    def table_indices(self, pos: Int[Tensor, "B #H N"], request: Request) -> tuple[Int[Tensor, "b #H N"], int]:
        """Positions as places in a table, 0 where there is padding, and how many places hold them all.

        Rows that are one row, expanded, are one row.
        """
        self._check(request.queries.q.shape[1])
        rows = pos[:1] if len(pos) and pos.stride(0) == 0 else pos
        return rows.clamp_min(0), request.memo.get(lambda: self._end(rows), "places", pos, self.length)

    def _check(self, heads: int) -> None:
        if heads != self.heads:
            name = type(self).__name__
            raise ValueError(f"{name} of {self.heads} heads came to a layer of {heads}; give both the same number")

    def _end(self, pos: Tensor) -> int:
        if torch.compiler.is_compiling() or not pos.numel():
            return self.length
        advice = f"is beyond the {self.length} positions of this {type(self).__name__}; make length larger"
        if pos.device.type != "cpu":
            torch._assert_async((pos < self.length).all(), f"a position {advice}")  # waits for nothing
            return self.length
        if (max_pos := int(pos.max())) >= self.length:
            raise IndexError(f"position {max_pos} {advice}, or use Product()")
        return max(max_pos + 1, 1)


def take_rows(table: Float[Tensor, "H L n"], at: Int[Tensor, "b #H N"]) -> Float[Tensor, "b H N n"]:
    """Lines of each head's table."""
    if at.shape[:2] == (1, 1):
        return table[:, at[0, 0]][None]
    return table[torch.arange(len(table), device=at.device)[:, None], at]


def take_columns(numbers: Float[Tensor, "#B H T n"], at: Int[Tensor, "b #H S"]) -> Float[Tensor, "_ H T S"]:
    """Columns of what each query has."""
    if at.shape[:2] == (1, 1):
        return numbers[..., at[0, 0]]
    return numbers.take_along_dim(at[:, :, None], -1)


def expand_to_batch(scores: Float[Tensor, "_ H T S"], request: Request) -> Float[Tensor, "B H T S"]:
    """The same scores in every row of a batch, where they are alike."""
    return scores.expand(len(request.queries.pos), -1, -1, -1)
