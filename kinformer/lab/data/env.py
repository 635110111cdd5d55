"""Environments to act in: `env=t_maze,corridor=10`, `env=CartPole-v1`; what an agent learns from is what it does.

Choose it for a policy: `kinformer train gtrxl --data env=t_maze` puts one over the layers of that member.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from kinformer.core.model import Model
from kinformer.lab.data.data import Data
from kinformer.lab.data.support.parallel_environments import flatten_observations, limits
from kinformer.lab.data.support.rollout_stream import RolloutStream
from kinformer.lab.environments.support.make_environment import make

FORM, SERVES = "env=ID", ("environments",)
APART, MEASURED = 1 << 20, 32  # seeds of a split, of which so many episodes are measured


@dataclass(frozen=True, eq=False)
class EnvironmentData(Data):
    """An environment, and seeds of the episodes that are measured; those that are learned from have others.

    observations: the shape of what it shows; actions: how many kinds of actions there are, or, where they are not
    `discrete`, how many numbers an action has.
    """

    noun: ClassVar[str] = "an environment"
    serves: ClassVar[tuple[str, ...]] = SERVES
    lends: ClassVar[str] = "agent"
    counted: ClassVar[str] = "steps"
    name: str
    spec: str
    observations: tuple[int, ...]
    actions: int
    discrete: bool
    train: range = range(APART, APART + MEASURED)
    valid: range = range(2 * APART, 2 * APART + MEASURED)
    test: range = range(3 * APART, 3 * APART + 4 * MEASURED)

    @property
    def sizes(self) -> dict[str, int]:
        return {}

    @property
    def keywords(self) -> dict[str, Any]:
        return {"observations": self.observations, "actions": self.actions, "discrete": self.discrete}

    def longest_length(self, length: int) -> None:
        return None

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> RolloutStream:
        """What a model does in `batch` environments, `length` steps at a time. ValueError for one of other spaces."""
        for name, expected in self.keywords.items():
            if (actual := getattr(model, name, expected)) != expected:
                raise ValueError(f"{self.spec} has {name}={expected}, and this model {actual}; give one made for that")
        return RolloutStream(model, self.spec, self.valid, batch, length, seed)  # type: ignore[arg-type]

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        return f"{len(getattr(self, split))} episodes"


def read(where: str, **keywords: str) -> EnvironmentData:
    """An environment of ours, of a file of one's own or of Gymnasium, with keywords such as corridor=10.

    Errors: as `make`'s; ValueError too for actions that are neither kinds nor a row of numbers.
    """
    spec = ",".join([where, *(f"{name}={value}" for name, value in keywords.items())])
    env = flatten_observations(make(spec))
    space, between = env.action_space, limits(env.action_space)
    actions = int(space.n) if between is None else math.prod(space.shape)
    env.close()
    return EnvironmentData(f"env={spec}", spec, tuple(env.observation_space.shape), actions, between is None)
