"""Remembering: acts by a model's own state, step by step."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.acting import Actor, Player, Seen, finite
from kinformer.core.evaluating import evaluating
from kinformer.core.experience import Told
from kinformer.core.layer import State
from kinformer.core.state import reset
from kinformer.models.support.policies import Policy


class Said(NamedTuple):
    """The numbers of the policy and the value at each step, the state after them, and what layers reported."""

    policy: Float[Tensor, "B T K"]
    value: Float[Tensor, "B T"]
    state: State
    aux: Mapping[str, Tensor]
    stats: Mapping[str, Tensor]


class Speaker(Player):
    """A player with a state that says a distribution of actions at each step; observations are of this shape."""

    observations: tuple[int, ...]
    policy: Policy

    @abstractmethod
    def says(self, told: Told, state: State | None = None) -> Said:
        """The policy and the value at each step. A state that was handed over is spent."""


class Remembered(NamedTuple):
    """What was done before, how many steps were acted in, and the model's state."""

    acted: Tensor
    steps: Tensor
    state: State


class Remembering(Actor):
    """Acts as an agent says: an action of each row is drawn by seed, row and step."""

    def __init__(self, model: Speaker, seed: int):
        self.model, self.seed = model, seed

    def start(self, rows: int) -> Remembered:
        model = self.model
        like = next(model.parameters())
        acted = torch.zeros(rows, dtype=torch.long) if model.discrete else torch.zeros(rows, model.actions)
        steps = torch.zeros(rows, dtype=torch.long, device=like.device)
        with evaluating(model):
            return Remembered(acted.to(like.device), steps, model.start(rows, 1))

    def act(self, seen: Seen, state: Remembered) -> tuple[Tensor, Remembered]:
        model, begins = self.model, seen.begins
        before = state.acted if seen.acted is None else seen.acted.to(state.acted)
        acted = torch.where(begins if model.discrete else begins[:, None], -1 if model.discrete else 0, before)
        with evaluating(model):
            kept = reset(state.state, begins)
            said = model.says(told_one(_shaped(seen.observation, model.observations), acted, seen.reward), kept)
            chance = [numpy.random.default_rng((self.seed, row, at)) for row, at in enumerate(state.steps.tolist())]
            done = model.policy.drawn(finite(said.policy[:, 0]), chance).to(acted)
        return done, Remembered(done, state.steps + 1, said.state)


def told_one(observed: Tensor, acted: Tensor, earned: Float[Tensor, " B"]) -> Told:
    """One step of all rows."""
    marks = torch.zeros_like(earned, dtype=torch.long)
    return Told(marks[:, None], observed[:, None], acted[:, None], earned[:, None])


def _shaped(observation: Float[Tensor, "B S"], shape: tuple[int, ...]) -> Float[Tensor, "B *n"]:
    return observation.reshape(len(observation), *shape)
