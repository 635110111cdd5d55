"""RecurrentActor: plays an environment step by step with the decoding state of a model."""

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
    """Output of a policy model at each step.

    policy: parameters of the action distribution.
    value: predicted return.
    state: decoding state after the steps; None if no state was passed.
    aux, stats: auxiliary losses and statistics that the layers report.
    """

    policy: Float[Tensor, "B T K"]
    value: Float[Tensor, "B T"]
    state: State
    aux: Mapping[str, Tensor]
    stats: Mapping[str, Tensor]


class PolicyModel(Player):
    """Base class of models that act in an environment and have a decoding state.

    At each step they predict a distribution over actions, their `policy`. `observations` is the shape of an
    observation. A subclass supplies `predict`.
    """

    observations: tuple[int, ...]
    policy: Policy

    @abstractmethod
    def predict(self, steps: Observations, state: State | None = None) -> PolicyOutput:
        """Return the policy and the value at each step. The call consumes `state`; do not use it again.

        steps: observations with the action and the reward before each.
        state: decoding state before the steps; None for episodes that begin with these steps.
        """


class ActingState(NamedTuple):
    """State of a `RecurrentActor` between two steps.

    acted: last action of each row.
    steps: number of actions that each row has taken.
    state: decoding state of the model.
    """

    acted: Tensor
    steps: Tensor
    state: State


class RecurrentActor(Actor):
    """Actor that samples the action of each row from a model's policy.

    The random numbers depend only on the seed, the row and its step.

    model: model that acts, such as an `Agent`.
    seed: seed of the random numbers.
    """

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
    """Return one step of all rows as the input of a `PolicyModel`.

    observed: observation of each row.
    acted: action before the observation.
    earned: reward for that action.
    """
    marks = torch.zeros_like(earned, dtype=torch.long)
    return Observations(marks[:, None], observed[:, None], acted[:, None], earned[:, None])


def _reshape(observation: Float[Tensor, "B S"], shape: tuple[int, ...]) -> Float[Tensor, "B *n"]:
    return observation.reshape(len(observation), *shape)
