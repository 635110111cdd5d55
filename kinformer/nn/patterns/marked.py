"""Marked: global tokens given by a mask for each row of a batch."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import check_position_table
from kinformer.core.pattern import Index, Pattern, Spelled


@dataclass(frozen=True, eq=False, repr=False)
class MarkedKeys(Pattern):
    """Global keys of a batch: every query reads the marked keys of its row.

    Choose it for global tokens that differ from example to example, and `Tokens` if they are at the same positions in
    all rows. Pass it as `Context(also=MarkedKeys(mask))`.

    mask: True for each marked position [B P]; positions beyond P are not marked.
    """

    mask: Bool[Tensor, "B P"]

    def __post_init__(self) -> None:
        check_position_table("MarkedKeys.mask", self.mask, marks=True)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return read_mask(self.mask, b, k)

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return some_or_every(self.mask, k_lo + at, k_hi + at)


@dataclass(frozen=True, eq=False, repr=False)
class MarkedRows(Pattern):
    """Global queries of a batch: the marked queries of a row read every key.

    Choose it for global tokens that differ from example to example, and `Rows` if they are at the same positions in all
    rows. Pass it as `Context(also=MarkedRows(mask))`.

    mask: True for each marked position [B P]; positions beyond P are not marked.
    """

    mask: Bool[Tensor, "B P"]

    def __post_init__(self) -> None:
        check_position_table("MarkedRows.mask", self.mask, marks=True)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return read_mask(self.mask, b, q)

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return some_or_every(self.mask, q_lo + at, q_hi + at)


@dataclass(frozen=True, eq=False, repr=False)
class Marked(Spelled):
    """Global tokens of a batch: the marked tokens read all tokens, and all tokens read them.

    Choose it for Longformer's global tokens if they differ from example to example. Pass it as
    `Context(also=Marked(mask))`.

    mask: True for each marked position [B P]; positions beyond P are not marked.

    Source: Beltagy et al., 2020, arXiv:2004.05150, section 3.1.
    """

    mask: Bool[Tensor, "B P"]

    def __post_init__(self) -> None:
        check_position_table("Marked.mask", self.mask, marks=True)

    @property
    def expression(self) -> Pattern:
        return MarkedKeys(self.mask) | MarkedRows(self.mask)


def read_mask(mask: Tensor, b: Index, x: Index) -> Tensor:
    """Return mask[b, x] for rows b and positions x, and False for positions beyond the mask."""
    last = mask.shape[1] - 1
    return mask[b, torch.as_tensor(x).clamp(max=last)] & torch.as_tensor(x <= last)


def some_or_every(mask: Tensor, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether any row of `mask` is True at a position of lo..hi, and whether all rows are at all."""
    before, end = F.pad(mask.cumsum(1), (1, 0)), mask.shape[1]
    count = before[:, (hi + 1).clamp_max(end)] - before[:, lo.clamp_max(end)]
    return (count > 0).any(0), (count == hi - lo + 1).all(0)


_MASK = torch.tensor([[True, False, False, False, True] + [False] * 59] * 8)
EXAMPLES = (MarkedKeys(_MASK), MarkedRows(_MASK), Marked(_MASK))
