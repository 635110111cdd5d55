"""Key-to-Door: a key from the first room is rewarded only at the door in the third room."""

from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium.spaces import Box, Discrete
from jaxtyping import Float32

from kinformer.core.checks import check_at_least

MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))  # left, right, up, down
COLOURS = {"floor": (60, 60, 60), "agent": (230, 180, 40), "key": (60, 140, 230), "door": (40, 160, 60)}


class KeyToDoor(gymnasium.Env):
    """Three consecutive rooms: a key lies in the first, the second is empty, the third has a door.

    Choose it to test credit assignment. The only reward is 1 at the door, if the agent took the key two rooms before.
    Each room has `size` x `size` cells and lasts `steps` steps; the last room may end earlier. The agent takes the key
    by stepping on it. Actions are left, right, up and down.

    An observation has 7 values from 0 to 1. Three values are the room, one-hot. Two values are the row and the column
    of the agent. Two values are the row and the column of the key or the door, or 0 if neither is visible. After the
    first room no value tells whether the key was taken. The positions of the agent, the key and the door are random.
    `info` has "success" at the end of an episode.

    size: number of cells along each side of a room.
    steps: number of steps in each room.
    render_mode: "ansi", "rgb_array" or None.

    Errors: ValueError if a room has only one cell or no step.
    Source: Mesnard et al., 2020, arXiv:2011.09464; tested with Decision Transformer by Chen et al., 2021,
    arXiv:2106.01345, section 5.4.
    """

    kind: ClassVar[str] = "environment"
    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}

    def __init__(self, size: int = 4, steps: int = 10, render_mode: str | None = None):
        self.size, self.steps = check_at_least("size", size, 2), check_at_least("steps", steps, 1)
        self.render_mode = render_mode
        self.observation_space, self.action_space = Box(0, 1, (7,), numpy.float32), Discrete(len(MOVES))
        self.taken, self.has_key = 0, False
        self.at, self.key, self.door = (0, 0), (0, 0), (0, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32[numpy.ndarray, "7"], dict[str, Any]]:
        super().reset(seed=seed)
        self.taken, self.has_key = 0, False
        places = self.np_random.permutation(self.size**2)[:2]
        self.at, self.key = (divmod(int(place), self.size) for place in places)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Float32[numpy.ndarray, "7"], float, bool, bool, dict[str, Any]]:
        self.at = tuple(min(max(n + by, 0), self.size - 1) for n, by in zip(self.at, MOVES[int(action)], strict=True))  # type: ignore[assignment]
        room = self.room_number
        self.taken += 1
        if room == 0 and self.at == self.key:
            self.has_key = True
        opened = room == 2 and self.at == self.door
        over = opened or self.taken == 3 * self.steps
        if self.room_number != room and not over:
            self._enter()
        won = opened and self.has_key
        return self._observe(), float(won), over, False, {"success": won} if over else {}

    @property
    def room_number(self) -> int:
        """Number of the current room; the first is 0."""
        return min(self.taken // self.steps, 2)

    def render(self) -> Any:
        """Return the room as lines of text, or as a small image."""
        marks = [["."] * self.size for _ in range(self.size)]
        if (visible := self._visible_place()) is not None:
            marks[visible[0]][visible[1]] = "k" if self.room_number == 0 else "d"
        marks[self.at[0]][self.at[1]] = "o"
        if self.render_mode == "ansi":
            return "\n".join(map("".join, marks))
        names = {".": "floor", "k": "key", "d": "door", "o": "agent"}
        picture = numpy.zeros((self.size, self.size, 3), numpy.uint8)
        for row, line in enumerate(marks):
            for column, mark in enumerate(line):
                picture[row, column] = COLOURS[names[mark]]
        return picture.repeat(24, 0).repeat(24, 1)

    def _enter(self) -> None:
        """Move the agent to a random cell of the next room."""
        places = self.np_random.permutation(self.size**2)[:2]
        self.at, self.door = (divmod(int(place), self.size) for place in places)

    def _visible_place(self) -> tuple[int, int] | None:
        """Return the position of the key or the door; None if neither is visible."""
        if self.room_number == 0:
            return None if self.has_key else self.key
        return self.door if self.room_number == 2 else None

    def _observe(self) -> Float32[numpy.ndarray, "7"]:
        observation = numpy.zeros(7, numpy.float32)
        observation[self.room_number] = 1
        observation[3:5] = numpy.array(self.at) / (self.size - 1)
        if (visible := self._visible_place()) is not None:
            observation[5:] = (numpy.array(visible) + 1) / self.size
        return observation
