"""Auxiliary values: means over real tokens, penalties as they are, sums over layers by the last name of their key."""

import torch

from kinformer.core.loss import gathered, weighed


def test_gathered_averages_values_over_real_tokens_and_keeps_penalties() -> None:
    real = torch.tensor([[True, True, False], [True, False, False]])
    value = torch.tensor([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]])
    sums = gathered({"0.1.ponder": value, "1.1.ponder": value, "0.0.span": torch.tensor(4.0)}, real)
    assert {name: one.item() for name, one in sums.items()} == {"ponder": 6.0, "span": 4.0}
    assert gathered({"0.ponder": value}, torch.zeros_like(real))["ponder"].item() == 0.0


def test_weighed_adds_what_has_a_weight() -> None:
    sums = {"ponder": torch.tensor(6.0), "span": torch.tensor(4.0)}
    assert weighed(torch.tensor(1.0), sums, {"span": 0.5, "absent": 9.0}).item() == 3.0
