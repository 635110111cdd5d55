"""Repeat previous: say what was shown some steps ago, over and over."""

from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium.spaces import Discrete

from kinformer.core.checks import check_at_least


class RepeatPrevious(gymnasium.Env):
    """Each step shows a symbol, and asks for the one that was shown `back` steps before.

    Choose it to tell what an agent keeps, and for how long, where there is nothing to explore: every answer is rewarded
    at once. An observation is the number of a symbol, an action the number that is answered. An episode has `length`
    answers, each right one is worth 1 / length and each wrong one -1 / length; before there is something to repeat an
    answer counts nothing. Guessing returns 2 / kinds - 1 on average, and knowing all returns 1. At an episode's end
    `info` says under "success" what share of the answers was right.

    back: how many steps lie between what is shown and what is asked.
    kinds: how many symbols there are.
    length: answers in an episode.

    Errors: ValueError for numbers without a meaning. Source: Morad et al., 2023, arXiv:2303.01859, "RepeatPrevious",
    whose symbols are the suits of shuffled cards; here each is drawn anew.
    """

    kind: ClassVar[str] = "environment"
    metadata = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(self, back: int = 4, kinds: int = 4, length: int = 32, render_mode: str | None = None):
        self.back, self.kinds = check_at_least("back", back, 1), check_at_least("kinds", kinds, 2)
        self.length, self.render_mode = check_at_least("length", length, 1), render_mode
        self.observation_space, self.action_space = Discrete(kinds), Discrete(kinds)
        self.shown: list[int] = []
        self.right = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown, self.right = [self._draw_symbol()], 0
        return self.shown[-1], {}

    def step(self, action: int | numpy.integer) -> tuple[int, float, bool, bool, dict[str, Any]]:
        answers = len(self.shown) - self.back
        reward = 0.0
        if answers > 0:
            right = int(action) == self.shown[-1 - self.back]
            self.right += right
            reward = (1 if right else -1) / self.length
        over = answers == self.length
        self.shown.append(self._draw_symbol())
        return self.shown[-1], reward, over, False, {"success": self.right / self.length} if over else {}

    def render(self) -> str:
        """What was shown so far, the last one asked about in brackets."""
        return " ".join(
            f"({symbol})" if n == len(self.shown) - 1 - self.back else f"{symbol}"
            for n, symbol in enumerate(self.shown)
        )

    def _draw_symbol(self) -> int:
        return int(self.np_random.integers(self.kinds))
