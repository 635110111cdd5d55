"""Positions of queries and keys, for requests in which every row is a run.

A run is a sequence of consecutive positions, in which any token may be padding.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.request import Refusal, Request

FAR = 2**62


class Line(NamedTuple):
    """Ascending positions of queries or keys, one row for all rows of the batch or one for each.

    at: positions [#B, N] on the CPU, where plans are made. Padding has the position that continues the run.
    pos: positions [#B, N] on the device of the request, with -1 at padding.
    source: indices of gathered tokens in the row [#B, N], or None for all tokens in order.
    """

    at: Int[Tensor, "#B N"]
    pos: Int[Tensor, "#B N"]
    source: Int[Tensor, "#B N"] | None = None

    @property
    def size(self) -> int:
        return self.at.shape[1]

    def gather(self, positions: Int[Tensor, " N"]) -> "Line":
        """Return the line of only the tokens at ascending `positions`, with padding for missing tokens."""
        index = positions - self.at[:, :1]  # [#B N]
        inside = (index >= 0) & (index < self.size)
        index, inside = (x.to(self.pos.device) for x in (index.clamp(0, self.size - 1), inside))
        pos = torch.where(inside, self.pos.gather(1, index), -1)
        return Line(positions.expand(len(index), -1).contiguous(), pos, index)


class LinePair(NamedTuple):
    """Positions of the queries and of the keys, if rows differ or some are gathered.

    q: line of the queries.
    k: line of the keys.
    """

    q: Line
    k: Line


class PositionRun(NamedTuple):
    """Run of consecutive positions.

    first: first position.
    size: number of positions.
    """

    first: int
    size: int

    def line(self, device: torch.device) -> Line:
        at = torch.arange(self.first, self.first + self.size, device="cpu")[None]
        return Line(at, at.to(device))


class RunPair(NamedTuple):
    """Consecutive positions of the queries and of the keys, the same in every row.

    q: run of the queries.
    k: run of the keys.
    """

    q: PositionRun
    k: PositionRun

    def lines(self, device: torch.device) -> LinePair:
        return LinePair(self.q.line(device), self.k.line(device))


def find_runs(request: Request) -> RunPair | LinePair | Refusal:
    """Return the consecutive positions of the queries and keys of an attention call, or a Refusal.

    request: the attention call. Its positions are inspected once per forward pass.

    Returns a RunPair if all rows have the same positions and no padding, otherwise a LinePair with the positions of
    each row. Returns a Refusal if the positions of a row are not consecutive, if they differ by head, or if they are on
    the meta device.
    """
    q, k = request.queries.pos, request.keys.pos
    if q.shape[1] > 1 or k.shape[1] > 1:
        return Refusal("this executor needs the same positions in all heads")
    if request.is_causal and request.pattern.period() == 1:
        # the pattern is the same at any start
        return RunPair(PositionRun(0, q.shape[2]), PositionRun(0, k.shape[2]))
    if q.is_meta or k.is_meta:
        return Refusal("this executor needs the values of positions, and the meta device has none")
    return request.memo.get(lambda: _looked_at(q[:, 0], k[:, 0]), "runs", q, k)


def _looked_at(q: Int[Tensor, "B T"], k: Int[Tensor, "B S"]) -> RunPair | LinePair | Refusal:
    (q_first, q_fine), (k_first, k_fine) = (_find_run_starts(pos[:1] if pos.stride(0) == 0 else pos) for pos in (q, k))
    if q_fine is None or k_fine is None:
        return Refusal("this executor needs consecutive positions in each row, apart from padding")
    if q_fine and k_fine and len({*q_first}) == len({*k_first}) == 1:
        return RunPair(PositionRun(q_first[0], q.shape[1]), PositionRun(k_first[0], k.shape[1]))
    rows = max(len(q_first), len(k_first))

    def line(pos: Tensor, first: list[int]) -> Line:
        at = torch.tensor(first, device="cpu")[:, None] + torch.arange(pos.shape[1], device="cpu")
        return Line(at.expand(rows, -1).contiguous(), pos)

    return LinePair(line(q, q_first), line(k, k_first))


def _find_run_starts(pos: Int[Tensor, "B N"]) -> tuple[list[int], bool | None]:
    """Return the first position of each row, and whether all tokens are real; None if a row is no run.

    The first position of a row counts leading padding as part of the run.
    """
    real = pos >= 0
    begin = pos - torch.arange(pos.shape[1], device=pos.device)
    low, high = torch.where(real, begin, FAR).amin(1), torch.where(real, begin, -FAR).amax(1)
    run, full = (low >= high).all(), real.all()
    *first, is_run, is_full = torch.cat((torch.where(low > high, 0, low), run[None], full[None])).tolist()
    return first, bool(is_full) if is_run else None


def distinct_rows(q: Line, k: Line) -> list[int]:
    """Return the index of one row for each different pair of first positions of `q` and `k`.

    Rows with the same first positions have the same positions, so that one of them is enough.
    """
    return list(
        {begin: row for row, begin in enumerate(zip(q.at[:, 0].tolist(), k.at[:, 0].tolist(), strict=True))}.values()
    )


def sort_present(positions: Tensor, line: Line) -> Tensor:
    """Return `positions` in ascending order, without those outside the range of positions of `line`."""
    positions = positions.sort().values
    return positions[(positions >= line.at.min()) & (positions <= line.at.max())]
