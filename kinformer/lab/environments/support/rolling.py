"""Rolling out: what a model, or chance, does in environments, episode by episode."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from kinformer.core.acting import Actor, Player, Seen, finite
from kinformer.core.checks import at_least, within
from kinformer.core.model import called
from kinformer.lab.data.support.episodes import Episode
from kinformer.lab.environments.support.worlds import Came, WorldError, Worlds

SIDE_BY_SIDE = 16
MOST = 10_000  # steps of an episode
FRAMES = 600  # pictures of an episode
Hear = Callable[[int], None]  # is told how many steps were taken


def silent(steps: int) -> None:
    """Tell nobody."""


class Rolled(NamedTuple):
    """An episode that was played: its number, its steps, how it ended, and pictures of its first ones where
    they were wanted."""

    number: int
    episode: Episode
    cut: bool
    success: float | None
    frames: tuple[numpy.ndarray, ...] = ()


class Way(NamedTuple):
    """How environments are played in.

    spec: the environment, as `--env` writes it.
    episodes: how many are played, so many at most side by side; the n-th begins by the seed `seed` + n.
    asked: the return that is asked for, None for none.
    random: the share of actions that chance takes instead.
    most: steps after which an episode is cut.
    drawn: draw the first steps of the first episode.
    """

    spec: str
    episodes: int
    asked: float | None = None
    random: float = 0.0
    seed: int = 0
    most: int = MOST
    drawn: bool = False


def rolled(player: Player | None, way: Way, hear: Hear = silent) -> Iterator[Rolled]:
    """Episodes as they end; chance alone acts where there is no player. `hear` is told of steps as they are taken.

    Which row plays which episode is fixed beforehand, so that short ones are no more frequent than long ones.

    Errors: ValueError for no episodes, for an environment of other observations or actions than the player knows, and
    for returns that it cannot ask for; WorldError, in one line, for an environment that fails, for what is not finite
    in what the player says, and for an episode longer than it can read. What has ended before is given before.
    """
    within("random", way.random, 0, 1)
    rows = min(at_least("episodes", way.episodes, 1), SIDE_BY_SIDE)
    spec = f"{way.spec},render_mode=rgb_array" if way.drawn else way.spec
    worlds = Worlds(spec, rows, lambda row, number: way.seed + number * rows + row)
    try:
        yield from _Roll(player, way, worlds, hear).episodes()
    finally:
        worlds.close()


def refuse_other(player: Player, spec: str, vector: Any) -> None:
    """ValueError where an environment shows or takes something else than the player knows."""
    from gymnasium.spaces import Discrete

    shown, space = int(numpy.prod(vector.single_observation_space.shape)), vector.single_action_space
    if shown != player.states:
        raise ValueError(f"{spec} shows {shown} numbers, and this {called(player)} reads {player.states}")
    kinds = isinstance(space, Discrete)
    takes = int(space.n) if isinstance(space, Discrete) else int(numpy.prod(space.shape))
    if kinds != player.discrete or takes != player.actions:
        mine, its = ("kinds of actions" if one else "numbers" for one in (player.discrete, kinds))
        advice = f"; train it with actions={takes}" if kinds and player.discrete and takes > player.actions else ""
        raise ValueError(f"{spec} takes {takes} {its}, and this {called(player)} says {player.actions} {mine}{advice}")


class _Steps:
    """The episode of a row so far."""

    def __init__(self) -> None:
        self.states: list[numpy.ndarray] = []
        self.actions: list[Any] = []
        self.rewards: list[float] = []

    def add(self, state: numpy.ndarray, action: Any, reward: float) -> None:
        """A step more."""
        self.states.append(state)
        self.actions.append(action)
        self.rewards.append(reward)

    @property
    def episode(self) -> Episode:
        """What there is of it."""
        states, rewards = (numpy.asarray(part, numpy.float32) for part in (self.states, self.rewards))
        return Episode(states, numpy.stack(self.actions), rewards)


class _Roll:
    """Rows of episodes under way."""

    def __init__(self, player: Player | None, way: Way, worlds: Worlds, hear: Hear):
        self.way, self.worlds, self.rows, self.hear = way, worlds, worlds.rows, hear
        self.space = worlds.vector.single_action_space
        if player is not None:
            refuse_other(player, way.spec, worlds.vector)
        self.actor = None if player is None else _actor(player, way, self.rows)
        self.device = None if player is None else next(player.parameters()).device
        self.table = getattr(player, "steps", None)
        self.steps, self.frames = [_Steps() for _ in range(self.rows)], list[numpy.ndarray]()
        self.chance = numpy.random.default_rng(way.seed)
        self.space.seed(way.seed)

    def episodes(self) -> Iterator[Rolled]:
        """All of them, as they end."""
        begins, left = numpy.ones(self.rows, bool), self.way.episodes
        observed, reward, acted = self.worlds.begin(begins), numpy.zeros(self.rows), None
        state = None if self.actor is None else self.actor.start(self.rows)
        while left:
            if self.way.drawn and not self.worlds.episodes[0] and len(self.frames) < FRAMES:
                self.frames.append(self._drawn())
            flat = observed.reshape(self.rows, -1)
            acted, state = self._chosen(flat, reward, begins, acted, state)
            came = self.worlds.step(acted)
            for row, one in enumerate(self.steps):
                one.add(flat[row], acted[row], float(came.rewards[row]))
            self._tell()
            self.hear(self.rows)
            begins = came.ended | numpy.array([len(one.rewards) >= self.way.most for one in self.steps])
            for row in map(int, numpy.flatnonzero(begins)):
                number = int(self.worlds.episodes[row]) * self.rows + row
                if number < self.way.episodes:
                    left -= 1
                    yield self._ended(row, number, came)
                self.steps[row] = _Steps()
            reward, observed = numpy.where(begins, 0.0, came.rewards), came.observed
            if left and begins.any():
                observed = numpy.where(_as(begins, observed), self.worlds.begin(begins), observed)

    def _ended(self, row: int, number: int, came: Came) -> Rolled:
        cut = bool(came.cut[row] or not came.ended[row])
        success = float(came.success[row]) if came.success[row] >= 0 else None
        return Rolled(number, self.steps[row].episode, cut, success, () if number else tuple(self.frames))

    def _chosen(
        self, flat: numpy.ndarray, reward: numpy.ndarray, begins: numpy.ndarray, acted: numpy.ndarray | None, state: Any
    ) -> tuple[numpy.ndarray, Any]:
        """What each row does now."""
        drawn = numpy.stack([self.space.sample() for _ in range(self.rows)])
        if self.actor is None:
            return drawn, None
        done = None if acted is None else self._tensor(acted)
        seen = Seen(self._tensor(flat), self._tensor(reward), self._tensor(begins), done)
        try:
            said, state = self.actor.act(seen, state)
            finite(said)
        except (ValueError, IndexError) as error:  # a table that is too short for an episode, weights that are spoiled
            raise WorldError(str(error)) from error
        actions = said.cpu().numpy().astype(self.space.dtype)
        if self.worlds.limits is not None:
            actions = numpy.clip(actions, *self.worlds.limits)
        by_chance = self.chance.random(self.rows) < self.way.random
        return numpy.where(_as(by_chance, actions), drawn, actions), state

    def _tensor(self, numbers: numpy.ndarray) -> Tensor:
        found = torch.from_numpy(numpy.ascontiguousarray(numbers)).to(self.device)
        return found.float() if found.is_floating_point() else found

    def _drawn(self) -> numpy.ndarray:
        picture = self.worlds.vector.envs[0].render()
        if not isinstance(picture, numpy.ndarray) or picture.ndim != 3:
            raise ValueError(f"{self.way.spec} gave {type(picture).__name__} for a picture; leave out --out")
        return picture

    def _tell(self) -> None:
        """Warn, once, of steps that no training knew."""
        if self.table is not None and max(len(one.rewards) for one in self.steps) > self.table:
            longer = f"episodes last longer than the {self.table:,} steps of those that were learned from"
            warnings.warn(f"{longer}; later ones are taken for the last of these", stacklevel=4)
            self.table = None


def _actor(player: Player, way: Way, rows: int) -> Actor:
    like = next(player.parameters())
    asked = None if way.asked is None else torch.full((rows,), way.asked, device=like.device)
    return player.actor(asked, seed=way.seed)


def _as(rows: numpy.ndarray, like: numpy.ndarray) -> numpy.ndarray:
    """Marks of rows, in the shape of what is chosen for them."""
    return rows.reshape(-1, *[1] * (like.ndim - 1))
