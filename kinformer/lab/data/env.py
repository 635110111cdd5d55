"""Environments for reinforcement learning: `env=t_maze,corridor=10` or `env=CartPole-v1`.

Choose it to train a policy by the rewards of its own actions. In `kinformer train gtrxl --data env=t_maze`, the layers
of the member `gtrxl`, a model of the library, compute the policy.
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
APART, MEASURED = 1 << 20, 32  # distance between the seeds of two splits; measured episodes


@dataclass(frozen=True, eq=False)
class EnvironmentData(Data):
    """An environment with separate seeds for training, validation and test episodes.

    name: the specification of the data, "env=...".
    spec: the environment with its options, such as "t_maze,corridor=10".
    observations: shape of an observation.
    actions: number of possible actions if `discrete`, else the number of values in one action.
    discrete: True if an action is one of finitely many; False if it is a row of numbers.
    train, valid, test: seeds of the episodes on which an agent is measured. The episodes that it learns from have other
        seeds.
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
        """Return rollouts: the steps that the model takes in `batch` environments, `length` at a time.

        Errors: ValueError if the model was made for other observations or actions.
        """
        for name, expected in self.keywords.items():
            if (actual := getattr(model, name, expected)) != expected:
                raise ValueError(
                    f"{self.spec} has {name}={expected}, but this model was made for {actual}; give a model that was "
                    "made for this environment"
                )
        return RolloutStream(model, self.spec, self.valid, batch, length, seed)  # type: ignore[arg-type]

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        return f"{len(getattr(self, split))} episodes"


def read(where: str, **keywords: str) -> EnvironmentData:
    """Open an environment of this package, of a user's file, or of Gymnasium.

    where: name of the environment, or FILE.py:Name.
    keywords: keywords of the environment, such as corridor=10.

    Errors: the errors of `make`, which builds the environment; ValueError if an action is neither discrete nor a row of
    numbers.
    """
    spec = ",".join([where, *(f"{name}={value}" for name, value in keywords.items())])
    env = flatten_observations(make(spec))
    space, between = env.action_space, limits(env.action_space)
    actions = int(space.n) if between is None else math.prod(space.shape)
    env.close()
    return EnvironmentData(f"env={spec}", spec, tuple(env.observation_space.shape), actions, between is None)
