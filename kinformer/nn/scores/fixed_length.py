"""Synthesizer: scores without a product of query and key, from tables of a fixed number of positions."""

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
    """Base class of the synthesizers: scores that do not compare query and key.

    A score depends on the query and the key's position, or only on the two positions.

    heads: number of heads of the layer.
    length: number of positions in the tables; shorter sequences use the first of them. Use the same length for a table
        of learned position embeddings. Models read texts that are longer than such a table in windows, so that no
        position reaches `length`.

    Errors: ValueError if the layer has a different number of heads, raised when the layer is built; IndexError for a
    position beyond `length`.
    """

    def __init__(self, heads: int, length: int):
        super().__init__()
        self.heads, self.length = check_at_least("heads", heads, 1), check_at_least("length", length, 1)

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        self._check(sizes.heads)
        return {}

    def table_indices(self, pos: Int[Tensor, "B #H N"], request: Request) -> tuple[Int[Tensor, "b #H N"], int]:
        """Return positions as indices of a table, and a number that is above all of them.

        Padding has index 0. If all rows of the batch are one expanded row, the result has one row.

        pos: positions of queries or keys.
        request: queries and keys of the attention call that the positions belong to.
        """
        self._check(request.queries.q.shape[1])
        rows = pos[:1] if len(pos) and pos.stride(0) == 0 else pos
        return rows.clamp_min(0), request.memo.get(lambda: self._end(rows), "places", pos, self.length)

    def _check(self, heads: int) -> None:
        if heads != self.heads:
            name = type(self).__name__
            raise ValueError(f"{name} was made for {self.heads} heads, but its layer has {heads}. Make them equal")

    def _end(self, pos: Tensor) -> int:
        if torch.compiler.is_compiling() or not pos.numel():
            return self.length
        advice = f"is beyond the {self.length} positions of this {type(self).__name__}. Use a larger length"
        if pos.device.type != "cpu":
            torch._assert_async((pos < self.length).all(), f"a position {advice}")  # does not wait for the device
            return self.length
        if (max_pos := int(pos.max())) >= self.length:
            raise IndexError(f"position {max_pos} {advice}, or use Product()")
        return max(max_pos + 1, 1)


def take_rows(table: Float[Tensor, "H L n"], at: Int[Tensor, "b #H N"]) -> Float[Tensor, "b H N n"]:
    """Return the rows of each head's table at the given indices.

    table: table of each head.
    at: indices of rows for each token; one list for all heads or one for each head.
    """
    if at.shape[:2] == (1, 1):
        return table[:, at[0, 0]][None]
    return table[torch.arange(len(table), device=at.device)[:, None], at]


def take_columns(numbers: Float[Tensor, "#B H T n"], at: Int[Tensor, "b #H S"]) -> Float[Tensor, "_ H T S"]:
    """Return for each query the numbers at the given indices, one for each key.

    numbers: n numbers of each query.
    at: indices from 0 to n - 1, one for each key.
    """
    if at.shape[:2] == (1, 1):
        return numbers[..., at[0, 0]]
    return numbers.take_along_dim(at[:, :, None], -1)


def expand_to_batch(scores: Float[Tensor, "_ H T S"], request: Request) -> Float[Tensor, "B H T S"]:
    """Expand scores that are alike in all rows to the batch size of the request.

    scores: scores with batch size 1 or B.
    request: queries and keys that the scores are for.
    """
    return scores.expand(len(request.queries.pos), -1, -1, -1)
