"""segments: numbers of the sentence, line or paragraph that each token of a text belongs to."""

from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F


@runtime_checkable  # the tests check annotations at run time
class ByteTable(Protocol):
    """Protocol of a tokenizer that knows the bytes of each token, as `segments` needs it.

    An example is `checkpoint.tokenizer.Tokenizer`.
    """

    place: str

    @property
    def joined_pieces(self) -> bytes: ...

    def table(self, device: torch.device) -> tuple[Tensor, Tensor]: ...


Unit = Literal["sentence", "line", "paragraph"]
LINE, SPACES, STOPS = 10, b" \n", b".!?"


def segments(
    tokens: Int[Tensor, "B T"], tokenizer: ByteTable | None = None, *, unit: Unit = "sentence"
) -> Int[Tensor, "B T"]:
    """Return the number of each token's segment in its row, counted from 0; -1 at padding.

    A sentence ends with a stop and the space after it, a line with its newline, a paragraph with the empty lines after
    it. The number of a token does not depend on later tokens. A token without bytes, such as a mask, ends no segment.

    tokens: rows of bytes, or of the tokenizer's tokens; -1 is padding.
    tokenizer: tokenizer of the tokens; None for bytes. A token belongs to the segment of the last byte that it adds.
    unit: kind of segment: "sentence", "line" or "paragraph".

    Errors: ValueError for a tokenizer that loses the characters that end such a segment.
    """
    if tokenizer is None or not tokens.numel():
        return _of_bytes(tokens, unit)
    _refuse_lost(tokenizer, unit)
    spelled, ends = _spell_out(tokens, tokenizer)
    numbers = _of_bytes(spelled, unit).gather(1, (ends - 1).clamp_min(0))
    return torch.where(tokens >= 0, numbers.clamp_min(0), -1)


def _of_bytes(tokens: Int[Tensor, "B T"], unit: Unit) -> Int[Tensor, "B T"]:
    before, last = (F.pad(tokens, (n, 0), value=-1)[:, : tokens.shape[1]] for n in (2, 1))
    if unit == "line":
        begins = last == LINE
    elif unit == "sentence":
        begins = _is_any_of(before, STOPS) & _is_any_of(last, SPACES)
    else:
        begins = (before == LINE) & (last == LINE) & (tokens != LINE)
    return torch.where(tokens >= 0, (begins & (tokens >= 0)).cumsum(1), -1)


def _is_any_of(tokens: Tensor, symbols: bytes) -> Tensor:
    return torch.stack([tokens == symbol for symbol in symbols]).any(0)


def _refuse_lost(tokenizer: ByteTable, unit: Unit) -> None:
    ends = STOPS if unit == "sentence" else bytes([LINE])
    if not any(byte in tokenizer.joined_pieces for byte in ends):
        missing = "no sentence ends" if unit == "sentence" else "no line ends"
        raise ValueError(
            f"unit={unit} cannot be found: tokens of {tokenizer.place} have {missing}; give another unit or tokenizer"
        )


def _spell_out(tokens: Int[Tensor, "B T"], tokenizer: ByteTable) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B T"]]:
    """Return the bytes of each row, padded with -1 at the end, and the index at which each token's bytes end.

    An id outside the vocabulary, such as a mask, becomes one symbol that is not a byte.
    """
    joined, starts = tokenizer.table(tokens.device)
    size = len(starts) - 2  # the last entry is the symbol for unknown ids
    ids = torch.where((tokens >= 0) & (tokens < size), tokens, size)
    counts = torch.where(tokens >= 0, starts[ids + 1] - starts[ids], 0)
    ends = counts.cumsum(1)
    place = torch.arange(max(int(ends.max()), 1), device=tokens.device).repeat(len(tokens), 1)
    token = torch.searchsorted(ends, place, right=True).clamp_max(tokens.shape[1] - 1)
    at = starts[ids.gather(1, token)] + place - (ends - counts).gather(1, token)
    return torch.where(place < ends[:, -1:], joined[at.clamp(0, len(joined) - 1)], -1), ends
