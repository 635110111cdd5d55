"""Rollout: the steps of several environments, and the parts of episodes to learn from."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.layer import State
from kinformer.core.rollout import Observations, RolloutBatch
from kinformer.core.state import reset, select


class Rollout(NamedTuple):
    """Recorded steps of an agent in several parallel environments, one row for each environment.

    transitions: the inputs of the agent at each step.
    state: the state of the agent before the first of these steps.
    actions, log_p: actions and their log probabilities.
    advantages, returns: training targets of the policy and of the estimated value.
    rewards: rewards of the steps.
    ended: True at the last step of an episode.
    success: success of an ended episode; -1 if it is unknown.
    """

    transitions: Observations
    state: State
    actions: Tensor
    log_p: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]
    rewards: Float[Tensor, "B T"]
    ended: Bool[Tensor, "B T"]
    success: Float[Tensor, "B T"]

    def prepend_window(self, before: "Rollout", window: int) -> "Rollout":
        """Return this rollout with the last `window` steps of the previous one before it."""

        def join_window(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old[:, old.shape[1] - window :], new], 1)

        transitions = Observations(
            *(join_window(old, new) for old, new in zip(before.transitions, self.transitions, strict=True))
        )
        rest = (join_window(old, new) for old, new in zip(before[2:], self[2:], strict=True))
        return Rollout(transitions, self.state, *rest)


class Span(NamedTuple):
    """Steps `first` to `end` - 1 of a row of a `Rollout`, all of one episode."""

    row: int
    first: int
    end: int


def spans(ended: Bool[Tensor, "B T"], rows: Iterable[int], window: int) -> list[Span]:
    """Return the parts of episodes in some rows of a rollout that have steps to learn from.

    ended: True at the last step of an episode.
    rows: indices of the rows.
    window: number of steps at the start of the rollout that the agent reads but does not learn from.
    """
    pieces_of_rows = []
    for row in rows:
        first = 0
        for end in [*(ended[row].nonzero().squeeze(1) + 1).tolist(), ended.shape[1]]:
            if end > max(first, window):
                pieces_of_rows.append(Span(row, first, end))
            first = end
    return pieces_of_rows


def pieces(rollout: Rollout, window: int, rows: Sequence[int]) -> RolloutBatch:
    """Return the parts of episodes in some rows of a rollout, one row each, padded at the end.

    rollout: the steps of all rows.
    window: number of steps at the start of the rollout that the agent reads but does not learn from.
    rows: indices of the rows.
    """
    row_spans = spans(rollout.ended, rows, window)
    place = torch.tensor([span.row for span in row_spans], device=rollout.ended.device)
    learned = [(max(span.first, window), span.end) for span in row_spans]
    before = [(span.first, max(span.first, window)) for span in row_spans]
    state = reset(select(rollout.state, place), torch.tensor([span.first > 0 for span in row_spans]))
    transitions, rest = (
        _cut(rollout.transitions, place, learned),
        [_gather_columns(part, place, learned)[0] for part in rollout[2:]],
    )
    return RolloutBatch(transitions, _cut(rollout.transitions, place, before), state, *rest)


def under_way(rollout: Rollout, early: State, window: int) -> tuple[Observations, State]:
    """Return the steps of the running episodes among the last `window` steps, and the state before them.

    rollout: the steps of all rows.
    early: the state of the agent in all rows before the last `window` steps.
    window: number of last steps.
    """
    ended = rollout.ended[:, rollout.ended.shape[1] - window :]
    place = torch.arange(len(ended), device=ended.device)
    after = torch.where(ended, torch.arange(1, window + 1, device=ended.device), 0).amax(1)
    length = rollout.ended.shape[1]
    ends = [(length - window + first, length) for first in after.tolist()]
    return _cut(rollout.transitions, place, ends), reset(early, ended.any(1))


def _cut(transitions: Observations, place: Tensor, ends: Sequence[tuple[int, int]]) -> Observations:
    """Return columns first .. end - 1 of each row, with marks of -1 after them."""
    _, real = _gather_columns(transitions.marks, place, ends)
    parts = (_gather_columns(part, place, ends)[0] for part in transitions[1:])
    return Observations(torch.where(real, 0, -1), *parts)


def _gather_columns(part: Tensor, place: Tensor, ends: Sequence[tuple[int, int]]) -> tuple[Tensor, Bool[Tensor, "N W"]]:
    """Return columns first .. end - 1 of each row with arbitrary padding, and a mask of the real ones."""
    firsts, lasts = torch.tensor(ends, device=part.device).unbind(1)
    at = firsts[:, None] + torch.arange(int((lasts - firsts).max()), device=part.device)
    real = at < lasts[:, None]
    return part[place[:, None], at.clamp_max(part.shape[1] - 1)], real
