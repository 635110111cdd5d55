"""Repeat previous: answer at each step with the symbol that was shown some steps ago."""

from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium.spaces import Discrete

from kinformer.core.checks import check_at_least


class RepeatPrevious(gymnasium.Env):
    """An environment that shows a new symbol at each step and asks for the one `back` steps before.

    Choose it to measure what an agent remembers and for how long, without exploration: every answer is rewarded at
    once. An observation is the number of the new symbol, and an action is the number of the symbol that the agent
    answers.

    An episode has `length` rewarded answers. A right answer earns 1 / length, a wrong one -1 / length. The first `back`
    actions earn 0, because there is nothing to repeat yet. Guessing returns 2 / kinds - 1 on average, and perfect
    memory returns 1. `info` has the share of right answers as "success" at the end of an episode.

    back: number of steps from a symbol to the question for it.
    kinds: number of different symbols.
    length: number of rewarded answers in an episode.
    render_mode: "ansi" or None.

    Errors: ValueError if a number is out of range.
    Source: Morad et al., 2023, arXiv:2303.01859, "RepeatPrevious".

    Differences: the paper's symbols are the suits of shuffled cards; here each symbol is drawn independently.
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
        """Return the symbols so far, with the symbol of the current question in brackets."""
        return " ".join(
            f"({symbol})" if n == len(self.shown) - 1 - self.back else f"{symbol}"
            for n, symbol in enumerate(self.shown)
        )

    def _draw_symbol(self) -> int:
        return int(self.np_random.integers(self.kinds))
