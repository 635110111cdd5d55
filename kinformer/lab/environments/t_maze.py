"""T-maze: which way to turn is shown at the start, and asked at the end of a long corridor."""

from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium.spaces import Box, Discrete
from jaxtyping import Float32

from kinformer.core.checks import check_at_least

FORWARD = 0
Seen = Float32[numpy.ndarray, "4"]
RIGHT, WRONG, STILL = 1.0, -0.1, -0.1  # of the last turn, and of a step that leads nowhere


class TMaze(gymnasium.Env):
    """A corridor whose first cell shows which way to turn at its end.

    Choose it to tell how far back an agent remembers: whoever does not turns right in half of the episodes, and success
    is the share of episodes that end on the side shown. Actions: 0 forward, 1 and 2 to a side. An observation says
    whether the one or the other side is shown (the first cell alone), whether the cell is of the corridor, and whether
    it is the junction. A turn at the junction ends the episode: 1 where it is right, -0.1 where not. A turn in the
    corridor, and going forward at the junction, leads nowhere and costs 0.1. An episode of twice as many steps as the
    way takes is cut short. At an episode's end `info` says "success".

    corridor: cells before the junction, the first one included: steps between what is shown and what is asked.

    Errors: ValueError for a corridor without a cell. Source: Bakker, 2001, "Reinforcement learning with long short-term
    memory", NIPS, section 4.1, whose maze rewards 4 and lets the agent go back.
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
        """The maze as a line, or as a small picture."""
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
