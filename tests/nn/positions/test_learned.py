"""Learned positions: rows of a table, nothing at padding, an error beyond its end."""

import pytest
import torch

from kinformer.nn.positions.learned import Learned
from tests.unhooked import refusals, unhooked

POS = torch.tensor([[-1, 0, 1, 4], [3, 4, -1, -1]])


def test_gives_row_p_at_position_p_and_0_at_padding() -> None:
    part = Learned(6, 5)
    actual = part(POS)
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        p = int(POS[b, t])
        assert torch.equal(actual[b, t], part.table.weight[p] if p >= 0 else torch.zeros(6))


def test_padding_trains_no_row() -> None:
    part = Learned(6, 5)
    part(POS).sum().backward()
    assert part.table.weight.grad is not None
    assert part.table.weight.grad[:, 0].tolist() == [1, 1, 0, 1, 2]


def test_beyond_its_length_it_says_so() -> None:
    with pytest.raises(IndexError, match="position 5 is beyond the table of 5"):
        Learned(6, 5)(torch.tensor([[4, 5]]))


def test_an_accelerator_is_never_waited_for() -> None:
    """A tensor without numbers stands for one on a device: reading a number of it would be an error."""
    part = Learned(6, 5).to("meta")
    assert part(POS.to("meta")).shape == (2, 4, 6)


def test_a_batch_without_tokens_is_nothing() -> None:
    assert Learned(6, 5)(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 6)


def refusal_messages() -> list[str]:
    return refusals([lambda: Learned(0, 5), lambda: Learned(6, 0), lambda: Learned(6, 2.5)])  # type: ignore[arg-type]


def test_refuses_sizes_that_are_none() -> None:
    expected = ["d=0", "length=0", "length=2.5"]
    for text, start in zip(unhooked(f"{__name__}:{refusal_messages.__name__}"), expected, strict=True):
        assert text.startswith(f"ValueError: {start}: give a whole number of at least 1")
