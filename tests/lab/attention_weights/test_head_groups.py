"""Groups of heads: differences by hand, and complete linkage."""

import pytest
import torch

from kinformer.lab.attention_weights.head_groups import head_groups

EYE = torch.eye(4)
FIRST = torch.tensor([[1.0, 0, 0, 0]] * 4)


def mixed(share: float) -> torch.Tensor:
    """A head that moves a share of the weight of every query from its own token to the next one."""
    return (1 - share) * EYE + share * EYE.roll(1, 1)


def test_equal_heads_of_several_layers_form_a_group() -> None:
    maps = {"a": torch.stack([EYE, FIRST]), "b": torch.stack([FIRST, mixed(0.5), FIRST])}
    (group,) = head_groups(maps, 4)
    assert group.heads == [("a", 1), ("b", 0), ("b", 2)] and group.difference == 0


def test_the_difference_is_the_share_of_weight_on_other_keys() -> None:
    maps = {"a": torch.stack([EYE, mixed(0.08)])}
    (group,) = head_groups(maps, 4)
    assert group.difference == pytest.approx(0.08)
    assert not head_groups(maps, 4, most=0.07)
    # three of four queries of FIRST read another token
    (other,) = head_groups({"a": torch.stack([EYE, FIRST])}, 4, most=0.75)
    assert other.difference == pytest.approx(0.75)


def test_a_short_last_block_counts_for_its_queries() -> None:
    last = EYE.clone()
    last[3] = torch.tensor([1.0, 0, 0, 0])
    maps = {"a": torch.stack([EYE, last])}
    (group,) = head_groups(maps, 31, cell=10, most=1.0)  # 10, 10, 10 and 1 queries
    assert group.difference == pytest.approx(1 / 31)


def test_every_two_heads_of_a_group_are_near() -> None:
    # neighbours differ by 0.08 and the ends by 0.16, so the three heads are no group
    maps = {"a": torch.stack([mixed(0.0), mixed(0.08), mixed(0.16)])}
    (group,) = head_groups(maps, 4)
    assert len(group.heads) == 2 and group.difference == pytest.approx(0.08)
    (whole,) = head_groups(maps, 4, most=0.17)
    assert len(whole.heads) == 3 and whole.difference == pytest.approx(0.16)


def test_the_largest_group_is_first_and_one_head_is_none() -> None:
    maps = {"a": torch.stack([EYE, EYE, FIRST, FIRST, FIRST])}
    assert [len(group.heads) for group in head_groups(maps, 4)] == [3, 2]
    assert head_groups({"a": EYE[None]}, 4) == [] == head_groups({}, 4)


def test_heads_that_read_no_key_are_in_no_group() -> None:
    nothing = torch.zeros(4, 4)
    (group,) = head_groups({"a": torch.stack([nothing, EYE, nothing]), "b": torch.stack([nothing, EYE])}, 4)
    assert group.heads == [("a", 1), ("b", 1)] and group.difference == 0
    assert head_groups({"a": torch.stack([nothing, nothing, EYE])}, 4) == []
