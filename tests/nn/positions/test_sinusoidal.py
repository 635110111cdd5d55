"""Sinusoidal against the equation, number by number."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.nn.positions.sinusoidal import Sinusoidal
from tests.unhooked import refusals, unhooked

POS = torch.tensor([[-1, -1, 0, 1, 2, 700], [3, 5000, 7, 90000, -1, -1]])


USUAL = {"interleaved": "paper", "concat": "tensor2tensor"}


def naive(pos: Tensor, d: int, layout: str, frequencies: str | None = None) -> Tensor:
    """Number by number: the place of a pair by the layout, its frequency by the other name."""
    frequencies = frequencies or USUAL[layout]
    table = torch.zeros(*pos.shape, d, dtype=torch.float64)
    half = d // 2
    for b in range(pos.shape[0]):
        for t in range(pos.shape[1]):
            p = int(pos[b, t])
            for c in range(d if p >= 0 else 0):
                if layout == "interleaved":
                    n, wave = c // 2, math.cos if c % 2 else math.sin
                elif c < 2 * half:
                    n, wave = c % half, math.sin if c < half else math.cos
                else:
                    continue
                power = 2 * n / d if frequencies == "paper" else n / max(half - 1, 1)
                table[b, t, c] = wave(p / 10000**power)
    return table


@pytest.mark.parametrize("frequencies", [None, "paper", "tensor2tensor"])
@pytest.mark.parametrize("layout", ["interleaved", "concat"])
@pytest.mark.parametrize("d", [1, 2, 3, 6, 9, 16])
def test_equals_the_equation(d: int, layout: str, frequencies: str | None) -> None:
    ours = Sinusoidal(d, layout=layout, frequencies=frequencies).double()(POS)
    assert ours.dtype == torch.float64
    assert torch.allclose(ours, naive(POS, d, layout, frequencies), atol=1e-10, rtol=0)


@pytest.mark.parametrize("frequencies", ["paper", "tensor2tensor"])
def test_the_layout_is_an_order_of_columns_and_no_more(frequencies: str) -> None:
    """Marian's table is the paper's numbers, all sines before all cosines."""
    paper, concat = (Sinusoidal(8, layout=layout, frequencies=frequencies)(POS) for layout in ("interleaved", "concat"))
    assert torch.equal(concat, torch.cat([paper[..., ::2], paper[..., 1::2]], -1))


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


def refusal_messages() -> list[str]:
    wrong = [{"layout": "cat"}, {"frequencies": "marian"}, {"base": 0.5}]
    return refusals(
        [*(lambda keywords=keywords: Sinusoidal(8, **keywords) for keywords in wrong), lambda: Sinusoidal(0)]
    )


def test_an_option_that_is_none_is_refused_also_without_checked_annotations() -> None:
    starts = ["layout='cat' is not known", "frequencies='marian' is not known", "base=0.5", "d=0"]
    for text, start in zip(unhooked(f"{__name__}:{refusal_messages.__name__}"), starts, strict=True):
        assert text.startswith(f"ValueError: {start}")
