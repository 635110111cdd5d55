"""WindowActor: acts by the last steps of each row, which a model of trajectories reads again for every action."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.actor import Actor, Player, TimeStep, check_finite_outputs
from kinformer.core.batch import EpisodeSteps
from kinformer.core.eval_mode import evaluating
from kinformer.models.support.scale_buffers import ScaleBuffers


class TrajectoryPrediction(NamedTuple):
    """What is said at each step: of actions scores of each kind, or the numbers over their largest.

    With `beside`, also the next step's state by its mean and deviation, and its return to go over the largest.
    """

    actions: Float[Tensor, "B T A"]
    states: Float[Tensor, "B T S"] | None
    returns: Float[Tensor, "B T"] | None


class TrajectoryModel(Player):
    """A player that reads the last `context` steps again for each action, of episodes of `steps` that it knows."""

    context: int
    steps: int
    measured: ScaleBuffers

    @abstractmethod
    def predict(self, batch: EpisodeSteps) -> TrajectoryPrediction:
        """What is said at each step, of real ones; nothing of what comes after them is read."""


class RecentSteps(NamedTuple):
    """The last steps of each row, the newest at the right; -1 in times is none."""

    steps: EpisodeSteps


class WindowActor(Actor):
    """Acts as a model says: the likeliest kind, or its numbers in the environment's own units.

    model: a model of trajectories.
    target_return: the return that each row asks for.
    highest: what is asked for where nothing else is.

    What is left of a return is lowered by each reward: R_{t+1} = R_t - r_t. Source: Chen et al., 2021,
    arXiv:2106.01345, algorithm 1.
    """

    def __init__(self, model: TrajectoryModel, target_return: Float[Tensor, " B"] | None, highest: float):
        self.model, self.target_return, self.highest = model, target_return, highest

    def start(self, rows: int) -> RecentSteps:
        """No steps, in float32 or better: what is left of a return falls by less than narrower numbers tell apart."""
        model, size = self.model, self.model.context
        like: Tensor = next(model.parameters())
        like = like.new_empty(0, dtype=torch.promote_types(like.dtype, torch.float32))
        numbers = like.new_zeros(rows, size, model.states)
        actions = numbers[..., 0].long() if model.discrete else like.new_zeros(rows, size, model.actions)
        times = torch.full((rows, size), -1, device=like.device)
        return RecentSteps(EpisodeSteps(numbers[..., 0], numbers, actions, times))

    def act(self, step: TimeStep, state: RecentSteps) -> tuple[Tensor, RecentSteps]:
        """An action for each row, and the steps with the newest one behind the others."""
        before, begins = state.steps, step.begins
        target_return = (
            torch.full_like(step.reward, self.highest)
            if self.target_return is None
            else self.target_return.to(step.reward)
        )
        reward = step.reward * ~self.model.measured.delayed  # of what learned from rewards at the end alone
        left = torch.where(begins, target_return, before.returns[:, -1] - reward)
        time = torch.where(begins, 0, before.times[:, -1] + 1).clamp_max(self.model.steps - 1)
        new = (left, step.observation, torch.zeros_like(before.actions[:, 0]), time)
        if step.acted is not None:
            before.actions[:, -1] = step.acted.to(before.actions)
        pairs = zip(before, new, strict=True)
        steps = EpisodeSteps._make(torch.cat([old[:, 1:], newest[:, None].to(old)], 1) for old, newest in pairs)
        steps = steps._replace(times=steps.times.masked_fill(begins[:, None] & _is_before_last(steps.times), -1))
        with evaluating(self.model):
            actions = check_finite_outputs(self.model.predict(_tight(steps)).actions[:, -1])
        model = self.model
        action = actions.argmax(-1) if model.discrete else actions * model.measured.actions
        steps.actions[:, -1] = action.to(steps.actions)
        return action, RecentSteps(steps)


def _is_before_last(times: Tensor) -> Tensor:
    """All columns but the last."""
    return torch.arange(times.shape[1], device=times.device) < times.shape[1] - 1


def _tight(steps: EpisodeSteps) -> EpisodeSteps:
    """The columns in which any row has a step."""
    first = int((steps.times >= 0).any(0).long().argmax())
    return EpisodeSteps._make(part[:, first:] for part in steps)
