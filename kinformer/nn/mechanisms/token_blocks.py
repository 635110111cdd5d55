"""TokenBlocks: the tokens of each row in blocks of consecutive positions."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class TokenBlocks(NamedTuple):
    """Blocks n * size .. n * size + size - 1 of each row, as many as its columns can touch.

    column: which column holds the token of each place, -1 where there is none; first: the number of the first block;
    pos: the positions that came, whose columns `spread` makes again.
    """

    column: Int[Tensor, "B N l"]
    first: Int[Tensor, " B"]
    pos: Int[Tensor, "B S"]

    @classmethod
    def from_positions(cls, pos: Int[Tensor, "B S"], size: int) -> "TokenBlocks":
        """The blocks of consecutive positions, in any order, -1 for none; they may begin within a block."""
        batch, length = pos.shape
        count = -(-(length - 1) // size) + 1 if length else 0
        real = pos >= 0
        last = torch.iinfo(pos.dtype).max
        first = torch.where(real, pos, last).amin(1) if length else pos.new_full((batch,), last)
        first = torch.where(first < last, first, 0) // size
        place = torch.where(real, pos - size * first[:, None], count * size).clamp_max(count * size)
        columns = torch.arange(length, device=pos.device).expand(batch, -1)
        # one place more than there are, into which padding falls
        column = pos.new_full((batch, count * size + 1), -1).scatter(1, place, columns)[:, :-1]
        return cls(column.view(batch, count, size), first, pos)

    @property
    def is_real(self) -> Bool[Tensor, "B N l"]:
        """Where a token stands."""
        return self.column >= 0

    @property
    def number(self) -> Int[Tensor, "B N"]:
        """The numbers of the blocks."""
        return self.first[:, None] + torch.arange(self.column.shape[1], device=self.first.device)

    @property
    def positions(self) -> Int[Tensor, "B N l"]:
        """The position of every place, whether a token stands there or not."""
        size = self.column.shape[2]
        return size * self.number[..., None] + torch.arange(size, device=self.first.device)

    def split_into_blocks(self, x: Float[Tensor, "B G S n"]) -> Float[Tensor, "B G N l n"]:
        """What tokens have, in blocks; 0 where none stands."""
        flat = self.column.flatten(1)
        rows = _rows(x, flat.clamp_min(0)).masked_fill((flat < 0)[:, None, :, None], 0.0)
        return rows.unflatten(2, self.column.shape[1:])

    def spread(self, x: Float[Tensor, "B G N l n"], nothing: float = 0.0) -> Float[Tensor, "B G S n"]:
        """The way back: what the places of tokens have, and `nothing` at padding."""
        size = self.column.shape[2]
        place = self.pos - size * self.first[:, None]
        # a place behind the blocks is of a gap that a run has not; another row's tokens lie there
        padding = (self.pos < 0) | (place >= x.shape[2] * size)
        place = place.masked_fill(padding, 0)
        return _rows(x.flatten(2, 3), place).masked_fill(padding[:, None, :, None], nothing)


def _rows(x: Float[Tensor, "B G S n"], at: Int[Tensor, "B M"]) -> Float[Tensor, "B G M n"]:
    """Tokens of each row, whole: an index for each of their numbers would cost more than the numbers."""
    batch, groups, length, width = x.shape
    if not length:
        return x.new_zeros(batch, groups, at.shape[1], width)
    first = length * torch.arange(batch, device=at.device)[:, None]
    tokens = x.transpose(1, 2).reshape(batch * length, groups * width)
    rows = tokens.index_select(0, (at + first).flatten())
    return rows.view(batch, at.shape[1], groups, width).transpose(1, 2)
