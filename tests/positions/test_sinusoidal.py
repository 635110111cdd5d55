"""Sinusoidal against the equation, number by number."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.positions.sinusoidal import Sinusoidal, Timing

POS = torch.tensor([[-1, -1, 0, 1, 2, 700], [3, 5000, 7, 90000, -1, -1]])


def naive(pos: Tensor, d: int, layout: str) -> Tensor:
    table = torch.zeros(*pos.shape, d, dtype=torch.float64)
    half = d // 2
    for b in range(pos.shape[0]):
        for t in range(pos.shape[1]):
            p = int(pos[b, t])
            for c in range(d if p >= 0 else 0):
                if layout == "interleaved":
                    angle = p / 10000 ** (2 * (c // 2) / d)
                    table[b, t, c] = math.cos(angle) if c % 2 else math.sin(angle)
                elif c < 2 * half:
                    angle = p / 10000 ** ((c % half) / max(half - 1, 1))
                    table[b, t, c] = math.sin(angle) if c < half else math.cos(angle)
    return table


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
@pytest.mark.parametrize("d", [1, 2, 3, 6, 9, 16])
def test_equals_the_equation(d: int, layout: str) -> None:
    ours = Sinusoidal(d, layout=layout).double()(POS)
    assert ours.dtype == torch.float64
    assert torch.allclose(ours, naive(POS, d, layout), atol=1e-10, rtol=0)


def test_a_step_turns_each_pair_by_one_angle(float64: None) -> None:
    """PE(p + s) is a rotation of PE(p) that does not depend on p: the reason the paper gives for the form."""
    pos = torch.arange(40)[None]
    near, far = Sinusoidal(8)(pos)[0], Sinusoidal(8)(pos + 13)[0]
    turn = 13 * 10000 ** (-torch.arange(0, 8, 2) / 8)
    sin, cos = near[:, ::2], near[:, 1::2]
    assert torch.allclose(far[:, ::2], sin * turn.cos() + cos * turn.sin(), atol=1e-12)
    assert torch.allclose(far[:, 1::2], cos * turn.cos() - sin * turn.sin(), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_follows_the_dtype_and_keeps_far_positions_apart(dtype: torch.dtype) -> None:
    table = Sinusoidal(16).to(dtype)(torch.tensor([[4096, 4097]]))
    assert table.dtype == dtype
    exact = naive(torch.tensor([[4096, 4097]]), 16, "interleaved")
    assert (table.double() - exact).abs().max() < 5e-3
    assert not torch.equal(table[0, 0], table[0, 1])


def test_has_nothing_to_save() -> None:
    assert not Sinusoidal(16).state_dict() and not list(Sinusoidal(16).parameters())


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
def test_timing_is_the_wave_of_the_position_and_that_of_the_step(layout: str) -> None:
    for step in (0, 3):
        steps = torch.where(POS >= 0, step, -1)
        wanted = naive(POS, 6, layout) + naive(steps, 6, layout)
        assert torch.allclose(Timing(6, layout=layout).double()(POS, step), wanted, atol=1e-10, rtol=0)
