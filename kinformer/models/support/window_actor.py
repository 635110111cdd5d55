"""WindowActor: plays an environment; a model reads the last steps of each row again for every action."""

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
    """Predictions of a model of trajectories at each step.

    actions: score of each kind of action, or the components of an action divided by their scales.
    states: normalised observation of the next step; None if the model does not predict it (beside=0).
    returns: return to go of the next step divided by the scale of returns; None if the model does not predict it.
    """

    actions: Float[Tensor, "B T A"]
    states: Float[Tensor, "B T S"] | None
    returns: Float[Tensor, "B T"] | None


class TrajectoryModel(Player):
    """Base class of models that act by reading the last `context` steps again for each action.

    `steps` is the number of steps of an episode that the model can distinguish. `measured` holds the scales of the
    training episodes. A subclass supplies `predict`.
    """

    context: int
    steps: int
    measured: ScaleBuffers

    @abstractmethod
    def predict(self, batch: EpisodeSteps) -> TrajectoryPrediction:
        """Return the predictions at each step; a prediction depends only on this step and earlier ones.

        batch: steps of episodes.
        """


class RecentSteps(NamedTuple):
    """State of a `WindowActor`: the last steps of each row.

    steps: these steps, the newest last; a time of -1 marks an empty step.
    """

    steps: EpisodeSteps


class WindowActor(Actor):
    """Actor that takes the most likely kind of action, or the predicted vector in the environment's units.

    Each reward lowers the return to go, which the model gets as input: R_{t+1} = R_t - r_t. If the training episodes
    have their whole reward at the last step, the return to go stays constant.

    model: a model of trajectories.
    target_return: return to reach in an episode, one for each row.
    highest: return to reach if `target_return` is None.

    Source: Chen et al., 2021, arXiv:2106.01345, algorithm 1.
    """

    def __init__(self, model: TrajectoryModel, target_return: Float[Tensor, " B"] | None, highest: float):
        self.model, self.target_return, self.highest = model, target_return, highest

    def start(self, rows: int) -> RecentSteps:
        """Return a state without steps, in float32 or better, because lower precision loses small rewards."""
        model, size = self.model, self.model.context
        like: Tensor = next(model.parameters())
        like = like.new_empty(0, dtype=torch.promote_types(like.dtype, torch.float32))
        numbers = like.new_zeros(rows, size, model.states)
        actions = numbers[..., 0].long() if model.discrete else like.new_zeros(rows, size, model.actions)
        times = torch.full((rows, size), -1, device=like.device)
        return RecentSteps(EpisodeSteps(numbers[..., 0], numbers, actions, times))

    def act(self, step: TimeStep, state: RecentSteps) -> tuple[Tensor, RecentSteps]:
        """Return an action for each row, and the last steps with the newest one added."""
        before, begins = state.steps, step.begins
        target_return = (
            torch.full_like(step.reward, self.highest)
            if self.target_return is None
            else self.target_return.to(step.reward)
        )
        reward = step.reward * ~self.model.measured.delayed  # delayed: rewards come only at the end of an episode
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
    """Return True for all columns but the last."""
    return torch.arange(times.shape[1], device=times.device) < times.shape[1] - 1


def _tight(steps: EpisodeSteps) -> EpisodeSteps:
    """Return the steps without the leading columns that are empty in every row."""
    first = int((steps.times >= 0).any(0).long().argmax())
    return EpisodeSteps._make(part[:, first:] for part in steps)
