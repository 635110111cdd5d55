"""Auxiliary values: means over real tokens, penalties as they are, sums over layers by the last name of their key."""

import pytest
import torch
from torch import nn

from kinformer.core.loss import Penalty, check_known_penalties, penalties_of, sum_over_layers, weighted_loss


def test_gathered_averages_values_over_real_tokens_and_keeps_penalties() -> None:
    real = torch.tensor([[True, True, False], [True, False, False]])
    value = torch.tensor([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]])
    sums = sum_over_layers({"0.1.ponder": value, "1.1.ponder": value, "0.0.span": torch.tensor(4.0)}, real)
    assert {name: penalty.item() for name, penalty in sums.items()} == {"ponder": 6.0, "span": 4.0}
    assert sum_over_layers({"0.ponder": value}, torch.zeros_like(real))["ponder"].item() == 0.0


def test_weighed_adds_what_has_a_weight() -> None:
    sums = {"ponder": torch.tensor(6.0), "span": torch.tensor(4.0)}
    assert weighted_loss(torch.tensor(1.0), sums, {"span": 0.5, "absent": 9.0}, 0.0).item() == 3.0


def test_what_stands_at_padding_reaches_no_loss() -> None:
    real = torch.tensor([[True, False]])
    value = torch.tensor([[2.0, torch.nan]], requires_grad=True)
    averaged = sum_over_layers({"ponder": value}, real)["ponder"]
    assert averaged.item() == 2.0 and torch.autograd.grad(averaged, value)[0].tolist() == [[1.0, 0.0]]


class Spans(nn.Module):
    """A part with a penalty on its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.ones(1))

    def penalties(self) -> dict[str, Penalty]:
        return {"span": Penalty((self.width,))}


def test_a_weight_for_what_no_part_reports_is_refused() -> None:
    body = nn.Sequential(Spans(), nn.Linear(1, 1), Spans())
    assert {name: len(parameters) for name, parameters in penalties_of(body, None).items()} == {"span": 2}
    assert check_known_penalties({"span": 2.0}, [body]) == {"span": 2.0}
    with pytest.raises(ValueError, match="no part of this model reports 'spn'; it reports span"):
        check_known_penalties({"spn": 100.0}, [body])
    with pytest.raises(ValueError, match="reports 'span'; it reports none"):
        check_known_penalties({"span": 1.0}, [nn.Linear(1, 1), None])


def test_a_penalty_that_would_reward_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^penalties\['span'\]=-1.0: give a number from 0 up$"):
        check_known_penalties({"span": -1.0}, [Spans()])
