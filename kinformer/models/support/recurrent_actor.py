"""RecurrentActor: acts by a model's own state, step by step."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.actor import Actor, Player, TimeStep, check_finite_outputs
from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import State
from kinformer.core.rollout import Observations
from kinformer.core.state import reset
from kinformer.models.support.policies import Policy


class PolicyOutput(NamedTuple):
    """The numbers of the policy and the value at each step, the state after them, and what layers reported."""

    policy: Float[Tensor, "B T K"]
    value: Float[Tensor, "B T"]
    state: State
    aux: Mapping[str, Tensor]
    stats: Mapping[str, Tensor]


class PolicyModel(Player):
    """A player with a state that says a distribution of actions at each step; observations are of this shape."""

    observations: tuple[int, ...]
    policy: Policy

    @abstractmethod
    def predict(self, steps: Observations, state: State | None = None) -> PolicyOutput:
        """The policy and the value at each step. A state that was handed over is spent."""


class ActingState(NamedTuple):
    """What was done before, how many steps were acted in, and the model's state."""

    acted: Tensor
    steps: Tensor
    state: State


class RecurrentActor(Actor):
    """Acts as an agent says: an action of each row is drawn by seed, row and step."""

    def __init__(self, model: PolicyModel, seed: int):
        self.model, self.seed = model, seed

    def start(self, rows: int) -> ActingState:
        model = self.model
        like = next(model.parameters())
        acted = torch.zeros(rows, dtype=torch.long) if model.discrete else torch.zeros(rows, model.actions)
        steps = torch.zeros(rows, dtype=torch.long, device=like.device)
        with evaluating(model):
            return ActingState(acted.to(like.device), steps, model.start(rows, 1))

    def act(self, step: TimeStep, state: ActingState) -> tuple[Tensor, ActingState]:
        model, begins = self.model, step.begins
        before = state.acted if step.acted is None else step.acted.to(state.acted)
        acted = torch.where(begins if model.discrete else begins[:, None], -1 if model.discrete else 0, before)
        with evaluating(model):
            fresh_state = reset(state.state, begins)
            output = model.predict(
                single_step(_reshape(step.observation, model.observations), acted, step.reward), fresh_state
            )
            rngs = [numpy.random.default_rng((self.seed, row, at)) for row, at in enumerate(state.steps.tolist())]
            done = model.policy.sample(check_finite_outputs(output.policy[:, 0]), rngs).to(acted)
        return done, ActingState(done, state.steps + 1, output.state)


def single_step(observed: Tensor, acted: Tensor, earned: Float[Tensor, " B"]) -> Observations:
    """One step of all rows."""
    marks = torch.zeros_like(earned, dtype=torch.long)
    return Observations(marks[:, None], observed[:, None], acted[:, None], earned[:, None])


def _reshape(observation: Float[Tensor, "B S"], shape: tuple[int, ...]) -> Float[Tensor, "B *n"]:
    return observation.reshape(len(observation), *shape)
