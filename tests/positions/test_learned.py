"""Learned positions: rows of a table, nothing at padding, an error beyond its end."""

import pytest
import torch

from kinformer.positions.learned import Learned

POS = torch.tensor([[-1, 0, 1, 4], [3, 4, -1, -1]])


def test_gives_row_p_at_position_p_and_0_at_padding() -> None:
    part = Learned(6, 5)
    found = part(POS)
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        p = int(POS[b, t])
        assert torch.equal(found[b, t], part.table.weight[p] if p >= 0 else torch.zeros(6))


def test_padding_trains_no_row() -> None:
    part = Learned(6, 5)
    part(POS).sum().backward()
    assert part.table.weight.grad is not None
    assert part.table.weight.grad[:, 0].tolist() == [1, 1, 0, 1, 2]


def test_beyond_its_length_it_says_so() -> None:
    with pytest.raises(IndexError, match="position 5 is beyond the table of 5"):
        Learned(6, 5)(torch.tensor([[4, 5]]))
