"""T-maze: the start shows which way to turn at the end of a long corridor."""

from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium.spaces import Box, Discrete
from jaxtyping import Float32

from kinformer.core.checks import check_at_least

FORWARD = 0
Seen = Float32[numpy.ndarray, "4"]
RIGHT, WRONG, STILL = 1.0, -0.1, -0.1  # rewards of the last turn, and of a step without effect


class TMaze(gymnasium.Env):
    """A corridor with a first cell that shows which way to turn at the end.

    Choose it to measure how far back an agent remembers. Without memory it turns to the correct side in half of the
    episodes. Success is the share of episodes that end on the side that was shown. Actions: 0 is forward, 1 and 2 turn
    to a side.

    An observation has 4 values: two for the side shown (only in the first cell), one for a cell of the corridor, one
    for the junction. A turn at the junction ends the episode and earns 1 if it is correct, else -0.1. A turn in the
    corridor, and a step forward at the junction, have no effect and cost 0.1. An episode is cut short after twice as
    many steps as the way needs. `info` has "success" at the end of an episode.

    corridor: number of cells before the junction, including the first cell. This is also the number of steps between
        the cue and the turn.
    render_mode: "ansi", "rgb_array" or None.

    Errors: ValueError if `corridor` is below 1.
    Source: Bakker, 2001, https://papers.nips.cc/paper/2001/hash/a38b16173474ba8b1a95bcbc30d3b8a5-Abstract.html,
    "Reinforcement learning with long short-term memory", NIPS, section 4.1.

    Differences: Bakker's maze rewards 4 and lets the agent go back.
    """

    kind: ClassVar[str] = "environment"
    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}

    def __init__(self, corridor: int = 30, render_mode: str | None = None):
        self.corridor, self.render_mode = check_at_least("corridor", corridor, 1), render_mode
        self.observation_space = Box(0, 1, (4,), numpy.float32)
        self.action_space = Discrete(3)
        self.limit = 2 * (corridor + 1)
        self.side = self.cell = self.taken = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        super().reset(seed=seed)
        self.side, self.cell, self.taken = int(self.np_random.integers(2)), 0, 0
        return self._observe(), {}

    def step(
        self, action: int | numpy.integer
    ) -> tuple[Float32[numpy.ndarray, "4"], float, bool, bool, dict[str, Any]]:
        self.taken += 1
        turns, at_junction = int(action) != FORWARD, self.cell == self.corridor
        if turns and at_junction:
            right = int(action) - 1 == self.side
            return self._observe(), RIGHT if right else WRONG, True, False, {"success": right}
        self.cell += not turns and not at_junction
        over = self.taken >= self.limit
        return self._observe(), STILL if turns or at_junction else 0.0, False, over, {"success": False} if over else {}

    def render(self) -> Any:
        """Return the maze as a line of text, or as a small image."""
        if self.render_mode == "ansi":
            cells = "." * self.corridor + "T"
            return f"{cells[: self.cell]}o{cells[self.cell + 1 :]}"
        picture = numpy.zeros((3, self.corridor + 1, 3), numpy.uint8)
        picture[1], picture[:, -1] = 90, 90
        picture[0 if self.side == 0 else 2, -1] = (40, 160, 60)
        picture[1, self.cell] = (230, 180, 40)
        return picture.repeat(12, 0).repeat(12, 1)

    def _observe(self) -> Seen:
        observation = numpy.zeros(4, numpy.float32)
        if self.cell == 0:
            observation[self.side] = 1
        observation[3 if self.cell == self.corridor else 2] = 1
        return observation
