"""TokenBlocks: the tokens of each row in blocks of consecutive positions."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class TokenBlocks(NamedTuple):
    """Blocks n * size .. n * size + size - 1 of each row, as many as its columns can touch.

    column: column of the token at each place, [B, N, l]; -1 for an empty place.
    first: number of the first block, [B].
    pos: the original positions, [B, S]; `spread` returns to their columns.
    """

    column: Int[Tensor, "B N l"]
    first: Int[Tensor, " B"]
    pos: Int[Tensor, "B S"]

    @classmethod
    def from_positions(cls, pos: Int[Tensor, "B S"], size: int) -> "TokenBlocks":
        """Sort consecutive positions into blocks.

        pos: positions in any order, [B, S]; -1 for padding. They may begin within a block.
        size: number of tokens in a block.
        """
        batch, length = pos.shape
        count = -(-(length - 1) // size) + 1 if length else 0
        real = pos >= 0
        last = torch.iinfo(pos.dtype).max
        first = torch.where(real, pos, last).amin(1) if length else pos.new_full((batch,), last)
        first = torch.where(first < last, first, 0) // size
        place = torch.where(real, pos - size * first[:, None], count * size).clamp_max(count * size)
        columns = torch.arange(length, device=pos.device).expand(batch, -1)
        # one extra place, which collects padding
        column = pos.new_full((batch, count * size + 1), -1).scatter(1, place, columns)[:, :-1]
        return cls(column.view(batch, count, size), first, pos)

    @property
    def is_real(self) -> Bool[Tensor, "B N l"]:
        """True at places that hold a token."""
        return self.column >= 0

    @property
    def number(self) -> Int[Tensor, "B N"]:
        """Numbers of the blocks."""
        return self.first[:, None] + torch.arange(self.column.shape[1], device=self.first.device)

    @property
    def positions(self) -> Int[Tensor, "B N l"]:
        """Position of every place, with or without a token."""
        size = self.column.shape[2]
        return size * self.number[..., None] + torch.arange(size, device=self.first.device)

    def split_into_blocks(self, x: Float[Tensor, "B G S n"]) -> Float[Tensor, "B G N l n"]:
        """Move the entries x of tokens into blocks; empty places get 0."""
        flat = self.column.flatten(1)
        rows = _rows(x, flat.clamp_min(0)).masked_fill((flat < 0)[:, None, :, None], 0.0)
        return rows.unflatten(2, self.column.shape[1:])

    def spread(self, x: Float[Tensor, "B G N l n"], nothing: float = 0.0) -> Float[Tensor, "B G S n"]:
        """Move entries x of blocks back to the tokens; padding gets `nothing`."""
        size = self.column.shape[2]
        place = self.pos - size * self.first[:, None]
        # consecutive positions have no place beyond the blocks; the index there would reach another row
        padding = (self.pos < 0) | (place >= x.shape[2] * size)
        place = place.masked_fill(padding, 0)
        return _rows(x.flatten(2, 3), place).masked_fill(padding[:, None, :, None], nothing)


def _rows(x: Float[Tensor, "B G S n"], at: Int[Tensor, "B M"]) -> Float[Tensor, "B G M n"]:
    """Gather whole tokens of each row, because an index for each number would cost more than the numbers."""
    batch, groups, length, width = x.shape
    if not length:
        return x.new_zeros(batch, groups, at.shape[1], width)
    first = length * torch.arange(batch, device=at.device)[:, None]
    tokens = x.transpose(1, 2).reshape(batch * length, groups * width)
    rows = tokens.index_select(0, (at + first).flatten())
    return rows.view(batch, at.shape[1], groups, width).transpose(1, 2)
