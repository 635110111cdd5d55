"""Pieces against a loop over a text; runs that touch are one."""

import pytest
import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.models.spalm import LEAST, PieceIndex


def covered(text: Int[Tensor, " N"], piece: Int[Tensor, " n"]) -> set[int]:
    """Every place that is part of an occurrence."""
    n = len(piece)
    return {at + i for at in range(len(text) - n + 1) if text[at : at + n].equal(piece) for i in range(n)}


@pytest.mark.parametrize("kinds", [1, 2, 300])
@pytest.mark.parametrize("length", [LEAST, LEAST + 1, 20])
def test_runs_are_what_a_loop_finds(kinds: int, length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    text = torch.randint(kinds, (200,), generator=generator)
    text = torch.cat([text, text[:40], text[90:130]])
    pieces = PieceIndex(text)
    for at in (0, 5, 95, 280 - length):
        piece = text[at : at + length]
        runs = pieces.runs(piece)
        inside = [place for first, end in runs.tolist() for place in range(first, end)]
        assert inside == sorted(covered(text, piece)), "each once, and in order"


def test_what_is_short_or_not_there_is_not_found() -> None:
    text = torch.arange(50)
    assert PieceIndex(text).runs(text[: LEAST - 1]).shape == (0, 2)
    assert PieceIndex(text).runs(text[:LEAST].flip(0)).shape == (0, 2)
    assert PieceIndex(text).runs(torch.cat([text[-LEAST:], text[:1]])).shape == (0, 2)
    assert PieceIndex(text[:3]).runs(text[:LEAST]).shape == (0, 2)
