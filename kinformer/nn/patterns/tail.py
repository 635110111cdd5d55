"""Tail: global tokens at the end of every row."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import check_position_table
from kinformer.core.pattern import Index, Pattern, Spelled


@dataclass(frozen=True, eq=False, repr=False)
class TailKeys(Pattern):
    """Global keys at the end of each row: every query reads them.

    j >= first[b]

    Here j is the key and b the row of the batch. Pass it as `Context(also=TailKeys(first))`. Choose `Tail` if these
    tokens should also read all keys.

    first: first position of the global keys in each row [B 1].
    """

    first: Int[Tensor, "B 1"]

    def __post_init__(self) -> None:
        check_one_each("TailKeys.first", self.first)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor(k >= self.first[b, 0])

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return k_hi + at >= self.first.amin(), k_lo + at >= self.first.amax()


@dataclass(frozen=True, eq=False, repr=False)
class TailRows(Pattern):
    """Global queries at the end of each row: they read every key.

    i >= first[b]

    Here i is the query and b the row of the batch. Pass it as `Context(also=TailRows(first))`. Choose `Tail` if all
    queries should also read these tokens.

    first: first position of the global queries in each row [B 1].
    """

    first: Int[Tensor, "B 1"]

    def __post_init__(self) -> None:
        check_one_each("TailRows.first", self.first)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor(q >= self.first[b, 0])

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return q_hi + at >= self.first.amin(), q_lo + at >= self.first.amax()


@dataclass(frozen=True, eq=False, repr=False)
class Tail(Spelled):
    """Global tokens at the end of each row: they read all tokens, and all tokens read them.

    i >= first[b] or j >= first[b]

    Choose it if rows have different lengths, and `Tokens` and `Rows` for global tokens at the front. Pass it as
    `Context(also=Tail(first))`. The wrapper `GlobalEnds` does so by itself for the last block of each row.

    first: first position of the global tokens in each row [B 1].

    Source: Zaheer et al., 2020, arXiv:2007.14062, section 2: the first and the last block are global.
    """

    first: Int[Tensor, "B 1"]

    def __post_init__(self) -> None:
        check_one_each("Tail.first", self.first)

    @property
    def expression(self) -> Pattern:
        return TailKeys(self.first) | TailRows(self.first)


def check_one_each(name: str, first: Tensor) -> None:
    """Raise ValueError if `first` does not have shape [B, 1], one position for each row.

    name: name of the argument, for the message.
    first: tensor to check.
    """
    if check_position_table(name, first).shape[1] != 1:
        raise ValueError(f"{name} has the wrong shape: got {list(first.shape)}, expected one position per row, [B, 1]")


_FIRST = torch.tensor([[9], [20]] * 4)
EXAMPLES = (Tail(torch.tensor([[9]] * 8)), TailKeys(_FIRST), TailRows(_FIRST))
