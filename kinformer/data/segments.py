"""Segments: which sentence, line or paragraph of a text each byte belongs to."""

from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

Unit = Literal["sentence", "line", "paragraph"]
LINE, SPACES, STOPS = 10, b" \n", b".!?"


def segments(tokens: Int[Tensor, "B T"], unit: Unit = "sentence") -> Int[Tensor, "B T"]:
    """The number of each byte's segment in its row, from 0; -1 at padding.

    A sentence ends with a stop and the space after it, a line with its newline, a paragraph with the empty lines after
    it. What comes later changes no number. What stands for no byte, like a mask, ends nothing.
    """
    before, last = (F.pad(tokens, (n, 0), value=-1)[:, : tokens.shape[1]] for n in (2, 1))
    if unit == "line":
        begins = last == LINE
    elif unit == "sentence":
        begins = _among(before, STOPS) & _among(last, SPACES)
    else:
        begins = (before == LINE) & (last == LINE) & (tokens != LINE)
    return torch.where(tokens >= 0, (begins & (tokens >= 0)).cumsum(1), -1)


def _among(tokens: Tensor, some: bytes) -> Tensor:
    return torch.stack([tokens == one for one in some]).any(0)
