"""Document: attention within each document if several documents are packed into one row."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import check_position_table
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Document(Pattern):
    """Attention within documents: each query reads only keys of its own document.

    ids[b, i] = ids[b, j]

    Choose it if several documents are packed into one row. Pass it as `Context(only=Document(ids))`. If the tokens of a
    document are not contiguous, the result of `cover` is correct but not tight.

    ids: number of the document of each absolute position [B P]; positions beyond P read nothing and are not read.
    """

    ids: Int[Tensor, "B P"]

    def __post_init__(self) -> None:
        check_position_table("Document.ids", self.ids)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        last = self.ids.shape[1] - 1
        in_table = torch.as_tensor((q <= last) & (k <= last))
        q, k = torch.as_tensor(q).clamp(max=last), torch.as_tensor(k).clamp(max=last)
        return (self.ids[b, q] == self.ids[b, k]) & in_table

    def positions_in_document(self, pos: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """Return the number of earlier tokens of the same document for each position; -1 stays -1.

        The tokens of each document must be contiguous.
        """
        return torch.where(pos < 0, -1, pos - _first_positions(self.ids).gather(1, pos.clamp_min(0)))

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return same_id(self.ids, [end + at for end in (q_lo, q_hi, k_lo, k_hi)])


def same_id(ids: Tensor, ends: list[Tensor], cut: int = 0) -> tuple[Tensor, Tensor]:
    """Return whether any pair in a block of queries and keys has equal ids, and whether all pairs do.

    The first result is True if at least one row has such a pair, the second if all pairs of all rows are such pairs. If
    the tokens of an id are not contiguous, the first may be True without such a pair, and the second False although all
    pairs are such.

    ids: id of each absolute position [B P].
    ends: first and last position of the query blocks and of the key blocks: q_lo, q_hi, k_lo, k_hi.
    cut: a position that no block contains together with an earlier one; 0 for none.
    """
    firsts, last = _first_positions(ids), ids.shape[1] - 1
    halves = firsts[:, :cut], firsts[:, cut:]
    q_lo, q_hi, k_lo, k_hi = ends
    # lower bounds for blocks that begin at a position, upper bounds for blocks that end there
    running_min = torch.cat([half.flip(1).cummin(1).values.flip(1) for half in halves], 1)
    running_max = torch.cat([half.cummax(1).values for half in halves], 1)
    q_least, k_least = (running_min[:, lo.clamp_max(last)] for lo in (q_lo, k_lo))
    q_most, k_most = (running_max[:, hi.clamp_max(last)] for hi in (q_hi, k_hi))
    any_pair = (q_least <= k_most) & (k_least <= q_most)
    every = (q_least == q_most) & (k_least == k_most) & (q_least == k_least)
    begins_in_table, whole = (q_lo <= last) & (k_lo <= last), (q_hi <= last) & (k_hi <= last)
    return any_pair.any(0) & begins_in_table, every.all(0) & whole


def _first_positions(ids: Tensor) -> Tensor:
    """Return the first position that has the same id, for each position."""
    by_id, order = ids.sort(stable=True)
    new = F.pad(by_id[:, 1:] != by_id[:, :-1], (1, 0), value=True)
    start = torch.where(new, torch.arange(ids.shape[1], device=ids.device), 0).cummax(1).values
    return torch.empty_like(order).scatter(1, order, order.gather(1, start))


EXAMPLES = (
    Document(torch.tensor([[0] * 5 + [1] * 7 + [2] * 52] * 8)),
    Document(torch.tensor([[3] * 4 + [1] * 2 + [7] * 30 + [-1] * 28, [5] * 20 + [2] * 44] * 4)),
)
