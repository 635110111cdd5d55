"""State trees and the key cache."""

from typing import NamedTuple

import pytest
import torch

from kinformer.core.mechanism import NoState
from kinformer.core.state import KV, carry, detach, fork, leaves, map_state, reset, select, start_keys
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full
from kinformer.patterns.tokens import Tokens


def cache(pattern, length, chunks, now=0):
    """Feed chunks of one head of width 1 whose key is its own position; return the state after each."""
    state = start_keys(pattern, 1, length, 1, 1, 1)
    for n in chunks:
        pos = torch.arange(now, now + n)[None]
        k = pos[:, None, :, None].float()
        _, state = carry(state, k, k, pos, pattern)
        now += n
        yield state


def kept(state):
    return state.pos[0][state.pos[0] >= 0].tolist()


def test_a_band_keeps_its_window_whatever_the_chunks():
    for chunks in ([12], [1] * 12, [5, 1, 6]):
        *_, state = cache(Causal() & Band(3), 12, chunks)
        assert kept(state) == [9, 10, 11] and int(state.now) == 12
        assert state.pos.shape[1] == 4
        assert state.k[0, 0, :, 0][state.pos[0] >= 0].tolist() == [9, 10, 11]


def test_tokens_and_band_keep_both():
    *_, state = cache(Causal() & (Band(2) | Tokens(2)), 12, [3, 4, 5])
    assert kept(state) == [0, 1, 10, 11]


def test_a_cache_that_is_full_of_live_keys_grows_and_loses_none():
    *_, state = cache(Causal(), 4, [3, 3, 3])
    assert kept(state) == list(range(9))


def test_what_a_chunk_reads_is_what_was_kept_and_itself():
    pattern = Causal() & Band(2)
    *_, state = cache(pattern, 8, [5])
    k = torch.zeros(1, 1, 2, 1)
    (_, _, pos), _ = carry(state, k, k, torch.tensor([[5, 6]]), pattern)
    assert pos[pos >= 0].tolist() == [3, 4, 5, 6]
    (same, _, _), none = carry(None, k, k, torch.tensor([[5, 6]]), pattern)
    assert same is k and none is None


def test_padding_is_never_kept_and_does_not_move_now():
    state = start_keys(Causal(), 2, 6, 1, 1, 1)
    k = torch.zeros(2, 1, 3, 1)
    _, state = carry(state, k, k, torch.tensor([[0, 1, -1], [-1, -1, -1]]), Causal())
    assert state.now.tolist() == [2, 0]
    assert (state.pos >= 0).sum(1).tolist() == [2, 0]


def test_reading_ahead_has_no_state_and_says_what_to_do():
    with pytest.raises(NoState, match=r"Causal\(\) & it, or generate"):
        start_keys(Full(), 1, 4, 1, 1, 1)


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


def test_an_empty_cache_of_a_cross_attention_grows_from_nothing():
    state = KV.empty(1, 1, 0, 2, 2, dtype=None, device=None)
    k = torch.zeros(1, 1, 3, 2)
    _, state = carry(state, k, k, torch.tensor([[0, 1, 2]]), Causal())
    assert kept(state) == [0, 1, 2]
