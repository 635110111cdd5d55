"""CartPole whose velocities are hidden: an agent must tell them from where things were."""

import math
from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit, TransformReward
from jaxtyping import Float32

from kinformer.core.checks import check_at_least, check_strictly_between

SEEN = [0, 2]  # the cart's place and the pole's angle; 1 and 3 are their velocities
BOUNDS = numpy.array([2.4, math.radians(12)], numpy.float32)  # beyond which an episode ends
PARTS = 5  # of a bound are 1, so that what a step changes is no trifle beside what an agent is told of its action


class _Masked(gymnasium.ObservationWrapper):
    """The places of CartPole in fifths of their bounds, without its velocities."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.observation_space = Box(-numpy.inf, numpy.inf, (len(SEEN),), numpy.float32)

    def observation(self, observation: Float32[numpy.ndarray, "4"]) -> Float32[numpy.ndarray, "2"]:
        return observation[SEEN] / BOUNDS * PARTS


class MaskedCartPole(gymnasium.Wrapper):
    """CartPole of which only the cart's place and the pole's angle are seen.

    Choose it for a memory of a few steps: who sees one step alone does not know which way the pole falls, two steps
    tell it. Both are in fifths of where an episode ends, 2.4 and 12 degrees: 5 and -5 are the bounds. Each step that
    the pole stands is worth the same, up to `length` steps.

    length: steps after which an episode is cut short.
    worth: of a step. At a hundredth an episode returns about 1, which an agent learns to expect sooner than 100.

    Errors: ValueError for a length without a step, and for a worth that is not above 0. Source: Wierstra et al., 2007,
    "Solving deep memory POMDPs with recurrent policy gradients", ICANN; the cart of Gymnasium's CartPole-v1.
    """

    kind: ClassVar[str] = "environment"

    def __init__(self, length: int = 500, worth: float = 1.0, render_mode: str | None = None):
        check_strictly_between("worth", worth, 0, math.inf)
        game = TimeLimit(CartPoleEnv(render_mode=render_mode), check_at_least("length", length, 1))
        super().__init__(TransformReward(_Masked(game), lambda reward: worth * float(reward)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=options)
