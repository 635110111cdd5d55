"""Pieces: where pieces of a text stand in a longer one, told by a table that is made of it once."""

from typing import Any

import numpy
import torch
from jaxtyping import Int
from torch import Tensor

LEAST = 8  # tokens: a shorter piece, such as a common word, stands in many places, and is no sign of where it is from
FACTOR = numpy.uint64(0x9E3779B97F4A7C15)  # odd: a product with it keeps all bits


class Pieces:
    """Every LEAST tokens in a row of a text, in the order of a number made of them, by which they are found.

    It holds 20 bytes for each token of the text, and finds a piece in the time of a binary search.
    """

    def __init__(self, text: Int[Tensor, " N"]):
        self.text = text.cpu().to(torch.int32).numpy()
        numbers = _numbers(self.text)
        self.order = numbers.argsort(kind="stable")
        self.numbers = numbers[self.order]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pieces":
        """Return the object itself: it is immutable, and larger than a model."""
        return self

    def runs(self, piece: Int[Tensor, " n"]) -> Int[Tensor, "R 2"]:
        """Where a piece stands: the first and the end of runs, in order, that share nothing; none of a short piece."""
        wanted = piece.cpu().to(torch.int32).numpy()
        firsts = self._firsts(wanted) if len(wanted) >= LEAST else numpy.empty(0, numpy.int64)
        far = numpy.diff(firsts) > len(wanted)  # the piece that begins there lies behind the one before
        begins, ends = numpy.append(True, far), numpy.append(far, True)
        return torch.from_numpy(
            numpy.stack([firsts[begins[: len(firsts)]], firsts[ends[: len(firsts)]] + len(wanted)], 1)
        )

    def _firsts(self, piece: numpy.ndarray) -> numpy.ndarray:
        number = _numbers(piece[:LEAST])[0]
        at = slice(*(numpy.searchsorted(self.numbers, number, side) for side in ("left", "right")))
        found = self.order[at]
        found = found[found + len(piece) <= len(self.text)]
        for n, token in enumerate(piece):  # each leaves fewer for the next
            found = found[self.text[found + n] == token]
        return found


def _numbers(text: numpy.ndarray) -> numpy.ndarray:
    """A number of every LEAST tokens in a row, the same for the same tokens, modulo 2^64."""
    count = max(len(text) - LEAST + 1, 0)
    found = numpy.zeros(count, numpy.uint64)
    for n in range(LEAST):
        found *= FACTOR
        found += text[n : n + count].astype(numpy.uint64)
    return found
