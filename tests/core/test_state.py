"""State trees: leaves by name, and what is done to all of them."""

from typing import NamedTuple

import pytest
import torch

from kinformer.core.state import UncastState, detach, fork, leaves, map_state, reset, select, share_positions


class Tree(NamedTuple):
    pos: torch.Tensor
    inner: dict


class Own(NamedTuple):
    x: torch.Tensor

    def reset(self, rows):
        return Own(torch.where(rows, 7.0, self.x))


def tree():
    return (Tree(torch.tensor([3, 4]), {"a": torch.ones(2, 3, requires_grad=True)}), [Own(torch.zeros(2))], ())


def test_reset_is_minus_one_for_positions_zero_for_others_and_a_states_own():
    (pos, inner), (own,), nothing = reset(tree(), torch.tensor([False, True]))
    assert (
        pos.tolist() == [3, -1]
        and inner["a"].tolist() == [[1, 1, 1], [0, 0, 0]]
        and own.x.tolist() == [0, 7]
        and nothing == ()
    )


def test_select_repeats_rows_fork_copies_detach_cuts():
    state = tree()
    assert select(state, torch.tensor([1, 1, 0]))[0].pos.tolist() == [4, 4, 3]
    copy = fork(state)
    copy[0].pos[0] = 9
    assert state[0].pos[0] == 3
    assert not detach(state)[0].inner["a"].requires_grad
    assert [name for name, _ in leaves(state)] == ["pos", "a", "x"]
    with pytest.raises(TypeError, match="got str"):
        map_state(lambda _, x: x, (torch.ones(1), "text"))


def test_reset_names_a_leaf_of_a_plain_sequence_by_its_parent():
    """Positions in a list are positions: -1, not 0."""
    after = reset({"pos": [torch.tensor([3, 4])], "k": (torch.tensor([5.0, 6.0]),)}, torch.tensor([True, False]))
    assert after["pos"][0].tolist() == [-1, 4] and after["k"][0].tolist() == [0, 6]


def test_what_must_keep_its_digits_is_in_an_object_that_nothing_looks_into():
    state = (UncastState({"sum": torch.ones(2, dtype=torch.float64), "pos": torch.tensor([1, 2])}),)
    assert [name for name, _ in leaves(state)] == ["sum", "pos"]
    copy = fork(state)
    copy[0].inside["sum"][0] = 9.0
    assert state[0].inside["sum"].tolist() == [1, 1]
    assert reset(state, torch.tensor([True, False]))[0].inside["pos"].tolist() == [-1, 2]
    assert select(state, torch.tensor([1]))[0].inside["pos"].tolist() == [2]
    halved = map_state(lambda _, x: x.half(), state)
    assert isinstance(halved[0], UncastState) and halved[0].inside["sum"].dtype == torch.float16


def test_a_tensor_that_layers_share_is_one_afterwards_too():
    pos = torch.tensor([3, 4])
    state = ({"pos": pos, "x": torch.ones(2)}, {"pos": pos, "x": torch.ones(2)})
    for change in (
        fork,
        detach,
        lambda s: select(s, torch.tensor([1, 0])),
        lambda s: reset(s, torch.tensor([True, False])),
    ):
        first, other = change(state)
        assert first["pos"] is other["pos"] and first["x"] is not other["x"]


def test_shared_makes_one_tensor_of_equal_fresh_positions_and_of_nothing_else():
    def fresh(slots):
        return {"pos": torch.full((2, slots), -1), "now": torch.zeros(2).long(), "k": torch.zeros(2, slots)}

    narrow, narrow_too, wide = share_positions((fresh(4), fresh(4), fresh(6)))
    assert narrow["pos"] is narrow_too["pos"] and narrow["now"] is narrow_too["now"] is wide["now"]
    assert narrow["pos"] is not wide["pos"] and wide["pos"].shape == (2, 6) and narrow["k"] is not narrow_too["k"]
