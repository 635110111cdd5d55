"""Timing: the wave of the position and that of the step, added up."""

import pytest
import torch

from kinformer.nn.positions.sinusoidal import Sinusoidal
from kinformer.nn.positions.timing import Timing
from tests.nn.positions.test_sinusoidal import POS, naive


@pytest.mark.parametrize("frequencies", [None, "paper"])
@pytest.mark.parametrize("layout", ["interleaved", "concat"])
def test_timing_is_the_wave_of_the_position_and_that_of_the_step(layout: str, frequencies: str | None) -> None:
    for step in (0, 3):
        steps = torch.where(POS >= 0, step, -1)
        expected = naive(POS, 6, layout, frequencies) + naive(steps, 6, layout, frequencies)
        ours = Timing(6, layout=layout, frequencies=frequencies).double()(POS, step)
        assert torch.allclose(ours, expected, atol=1e-10, rtol=0)


def test_base_is_that_of_its_waves() -> None:
    pos = torch.arange(5)[None]
    assert torch.equal(Timing(6, base=100.0)(pos, 0) - Timing(6, base=100.0)(pos * 0, 0), _waves(pos) - _waves(pos * 0))


def _waves(pos: torch.Tensor) -> torch.Tensor:
    zero = Sinusoidal(6, base=100.0)(pos * 0)
    return Sinusoidal(6, base=100.0)(pos) + zero


def test_the_paper_counts_from_one() -> None:
    timing = Timing(6, first=1).double()
    expected = naive(torch.where(POS >= 0, POS + 1, -1), 6, "interleaved", None)
    expected = expected + naive(torch.where(POS >= 0, 4, -1), 6, "interleaved", None)
    assert torch.allclose(timing(POS, 3), expected, atol=1e-10, rtol=0)
    assert not timing(POS, 3)[POS < 0].any() and (POS < 0).any()
