"""TokenBlocks: the tokens of each row in blocks of consecutive positions."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class TokenBlocks(NamedTuple):
    """Tokens of each row in blocks of consecutive positions n * size .. n * size + size - 1.

    There are as many blocks as tokens in a row of this length can touch.

    column: index (column) in the row of the token at each place of a block, [B, N, l]; -1 for an empty place.
    first: number n of the first block, [B].
    pos: positions of the tokens in their original order, [B, S]; `spread` restores this order.
    """

    column: Int[Tensor, "B N l"]
    first: Int[Tensor, " B"]
    pos: Int[Tensor, "B S"]

    @classmethod
    def from_positions(cls, pos: Int[Tensor, "B S"], size: int) -> "TokenBlocks":
        """Return the blocks of the tokens at given positions.

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
        """True at places of the blocks that hold a token."""
        return self.column >= 0

    @property
    def number(self) -> Int[Tensor, "B N"]:
        """Number n of each block in its row."""
        return self.first[:, None] + torch.arange(self.column.shape[1], device=self.first.device)

    @property
    def positions(self) -> Int[Tensor, "B N l"]:
        """Position of every place of the blocks, with or without a token."""
        size = self.column.shape[2]
        return size * self.number[..., None] + torch.arange(size, device=self.first.device)

    def split_into_blocks(self, x: Float[Tensor, "B G S n"]) -> Float[Tensor, "B G N l n"]:
        """Move x, with one entry per token, into the places of the blocks; empty places get 0."""
        flat = self.column.flatten(1)
        rows = _rows(x, flat.clamp_min(0)).masked_fill((flat < 0)[:, None, :, None], 0.0)
        return rows.unflatten(2, self.column.shape[1:])

    def spread(self, x: Float[Tensor, "B G N l n"], nothing: float = 0.0) -> Float[Tensor, "B G S n"]:
        """Move x, with one entry per place of a block, back to the tokens; padding gets `nothing`."""
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
