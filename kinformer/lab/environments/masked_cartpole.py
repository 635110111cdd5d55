"""CartPole with hidden velocities: an agent must infer them from earlier positions."""

import math
from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit, TransformReward
from jaxtyping import Float32

from kinformer.core.checks import check_at_least, check_strictly_between

SEEN = [0, 2]  # the cart's position and the pole's angle; 1 and 3 are their velocities
BOUNDS = numpy.array([2.4, math.radians(12)], numpy.float32)  # an episode ends beyond them
PARTS = 5  # observed value at a bound, so that changes in a step are not tiny beside the agent's other inputs


class _Masked(gymnasium.ObservationWrapper):
    """Observations of CartPole in fifths of their bounds, without the velocities."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.observation_space = Box(-numpy.inf, numpy.inf, (len(SEEN),), numpy.float32)

    def observation(self, observation: Float32[numpy.ndarray, "4"]) -> Float32[numpy.ndarray, "2"]:
        return observation[SEEN] / BOUNDS * PARTS


class MaskedCartPole(gymnasium.Wrapper):
    """CartPole with observations of only the position of the cart and the angle of the pole.

    Choose it to test a memory of a few steps. One step does not show in which direction the pole falls; two steps do.
    An episode ends if the cart is 2.4 units from the middle, or the pole 12 degrees from upright. Both values are
    scaled so that these bounds are -5 and 5. Each step with a standing pole has the same reward, up to `length` steps.

    length: steps after which an episode is cut short.
    worth: reward of a step. With 0.01, an episode of 100 steps returns 1, which an agent learns to predict sooner than
        100.
    render_mode: as in Gymnasium's CartPole; None does not render.

    Errors: ValueError if `length` is below 1, or if `worth` is not above 0.
    Source: Wierstra et al., 2007, doi:10.1007/978-3-540-74690-4_71, "Solving deep memory POMDPs with recurrent policy
    gradients", ICANN; the cart of Gymnasium's CartPole-v1.
    """

    kind: ClassVar[str] = "environment"

    def __init__(self, length: int = 500, worth: float = 1.0, render_mode: str | None = None):
        check_strictly_between("worth", worth, 0, math.inf)
        game = TimeLimit(CartPoleEnv(render_mode=render_mode), check_at_least("length", length, 1))
        super().__init__(TransformReward(_Masked(game), lambda reward: worth * float(reward)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=options)
