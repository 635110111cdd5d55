"""An environment that counts, and fails when it is told to."""

from typing import Any

import gymnasium
import numpy
from gymnasium.spaces import Box, Discrete


class Counting(gymnasium.Env):
    """Shows its seed's digit and the step; an episode has 2 + that digit steps, each worth 1 where action 1 is taken.

    `fails` at that step of all episodes together: it raises, or its reward or observation is NaN.
    """

    def __init__(
        self, failure: str = "raise", fails: int = 10**9, endless: bool = False, render_mode: str | None = None
    ):
        self.failure, self.fails, self.endless, self.count = failure, fails, endless, 0
        self.observation_space, self.action_space = Box(-1, 99, (3,), numpy.float32), Discrete(2)
        self.digit = self.step_of = 0
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.digit, self.step_of = (seed or 0) % 4, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.step_of += 1
        if self.count == self.fails and self.failure == "raise":
            raise RuntimeError("the cable\nis out")
        nan = self.count == self.fails
        reward = float("nan") if nan and self.failure == "reward" else float(action)
        observation = self._seen() + (float("nan") if nan and self.failure == "observation" else 0)
        return observation, reward, self.step_of == 2 + self.digit and not self.endless, False, {}

    def _seen(self) -> Any:
        return numpy.array([self.digit, self.step_of, 1], numpy.float32)


class Distant(Counting):
    """Shows the same numbers, a million million further from 0, in float64."""

    def __init__(self, far: float = 1e12, endless: bool = True, render_mode: str | None = None):
        super().__init__(endless=endless, render_mode=render_mode)
        self.far, self.observation_space = far, Box(-numpy.inf, numpy.inf, (3,), numpy.float64)

    def _seen(self) -> Any:
        return super()._seen().astype(float) + self.far
