"""Play episodes in environments with a model or with random actions, and yield their steps."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from kinformer.core.actor import Actor, Player, TimeStep, check_finite_outputs
from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.model import display_name
from kinformer.core.warn import warn
from kinformer.lab.data.support.offline_episodes import Episode
from kinformer.lab.data.support.parallel_environments import EnvironmentFailure, ParallelEnvironments, StepOutcome

SIDE_BY_SIDE = 16  # maximum number of episodes at a time
MOST = 10_000  # maximum steps of an episode
FRAMES = 600  # maximum images of an episode
ProgressCallback = Callable[[int], None]  # called with the number of new steps


def ignore_progress(steps: int) -> None:
    """Ignore the number of new `steps`; used if no progress is shown."""


class PlayedEpisode(NamedTuple):
    """An episode that was played.

    number: number of the episode, from 0.
    episode: its observations, actions and rewards.
    cut: True if a limit, such as of steps, ended it.
    success: the "success" that the environment reports at its end; None if it reports none.
    frames: images of its first steps, if they were requested.
    """

    number: int
    episode: Episode
    cut: bool
    success: float | None
    frames: tuple[numpy.ndarray, ...] = ()


class PlaySettings(NamedTuple):
    """Settings for playing episodes.

    spec: the environment with its options, such as "t_maze,corridor=10".
    episodes: number of episodes to play; at most 16 are played side by side.
    target_return: the sum of rewards that the model should reach; None for no target.
    random: share of actions that are replaced by random ones.
    seed: episode n (0, 1, ...) begins with the seed `seed` + n.
    most: steps after which an episode is cut.
    render: True makes images of the first steps of the first episode.
    """

    spec: str
    episodes: int
    target_return: float | None = None
    random: float = 0.0
    seed: int = 0
    most: int = MOST
    render: bool = False


def roll_out(
    player: Player | None, settings: PlaySettings, on_progress: ProgressCallback = ignore_progress
) -> Iterator[PlayedEpisode]:
    """Play episodes and yield each one when it ends.

    Several environments play side by side. It is fixed beforehand which of them plays which episode, so that short
    episodes are not over-represented.

    player: the model that acts; None for random actions.
    settings: the environment, the number of episodes, and how they are played.
    on_progress: function that is called with the number of new steps.

    Errors: ValueError if there are no episodes, if the environment has other observations or actions than the player,
    or if a target return is given that the player cannot aim at. EnvironmentFailure, in one line, if an environment
    fails, if an output of the player is not finite, or if an episode is longer than the player can read. Episodes that
    ended before the error are yielded.
    """
    check_in_range("random", settings.random, 0, 1)
    rows = min(check_at_least("episodes", settings.episodes, 1), SIDE_BY_SIDE)
    spec = f"{settings.spec},render_mode=rgb_array" if settings.render else settings.spec
    worlds = ParallelEnvironments(spec, rows, lambda row, number: settings.seed + number * rows + row)
    try:
        yield from _Roll(player, settings, worlds, on_progress).episodes()
    finally:
        worlds.close()


def refuse_other_spaces(player: Player, spec: str, vector: Any) -> None:
    """Raise ValueError if an environment has other observations or actions than the player.

    player: the model that acts.
    spec: the environment, for the message.
    vector: the vector environment of Gymnasium.
    """
    from gymnasium.spaces import Discrete

    observed, space = int(numpy.prod(vector.single_observation_space.shape)), vector.single_action_space
    if observed != player.states:
        raise ValueError(
            f"{spec} has {observed} numbers in an observation, but this {display_name(player)} reads {player.states}"
        )
    kinds = isinstance(space, Discrete)
    takes = int(space.n) if isinstance(space, Discrete) else int(numpy.prod(space.shape))
    if kinds != player.discrete or takes != player.actions:
        mine, theirs = (
            "discrete actions" if is_discrete else "numbers per action" for is_discrete in (player.discrete, kinds)
        )
        advice = f"; train it with actions={takes}" if kinds and player.discrete and takes > player.actions else ""
        raise ValueError(
            f"{spec} takes {takes} {theirs}, but this {display_name(player)} has {player.actions} {mine}{advice}"
        )


class _Steps:
    """The steps so far of the episode in a row."""

    def __init__(self) -> None:
        self.states: list[numpy.ndarray] = []
        self.actions: list[Any] = []
        self.rewards: list[float] = []

    def add(self, state: numpy.ndarray, action: Any, reward: float) -> None:
        """Add a step to the episode."""
        self.states.append(state)
        self.actions.append(action)
        self.rewards.append(reward)

    @property
    def episode(self) -> Episode:
        """The steps so far as an episode."""
        states, rewards = (numpy.asarray(part, numpy.float32) for part in (self.states, self.rewards))
        return Episode(states, numpy.stack(self.actions), rewards)


class _Roll:
    """The running episodes of all rows."""

    def __init__(
        self, player: Player | None, settings: PlaySettings, worlds: ParallelEnvironments, on_progress: ProgressCallback
    ):
        self.settings, self.worlds, self.rows, self.on_progress = settings, worlds, worlds.rows, on_progress
        self.space = worlds.vector.single_action_space
        if player is not None:
            refuse_other_spaces(player, settings.spec, worlds.vector)
        self.actor = None if player is None else _actor(player, settings, self.rows)
        self.device = None if player is None else next(player.parameters()).device
        self.table = getattr(player, "steps", None)
        self.steps, self.frames = [_Steps() for _ in range(self.rows)], list[numpy.ndarray]()
        self.rng = numpy.random.default_rng(settings.seed)
        self.space.seed(settings.seed)

    def episodes(self) -> Iterator[PlayedEpisode]:
        """Play the episodes and yield each one when it ends."""
        begins, left = numpy.ones(self.rows, bool), self.settings.episodes
        observed, reward, acted = self.worlds.begin(begins), numpy.zeros(self.rows), None
        state = None if self.actor is None else self.actor.start(self.rows)
        while left:
            if self.settings.render and not self.worlds.episodes[0] and len(self.frames) < FRAMES:
                self.frames.append(self._render())
            flat = observed.reshape(self.rows, -1)
            acted, state = self._choose(flat, reward, begins, acted, state)
            outcome = self.worlds.step(acted)
            for row, steps in enumerate(self.steps):
                steps.add(flat[row], acted[row], float(outcome.rewards[row]))
            self._warn_longer()
            self.on_progress(self.rows)
            begins = outcome.ended | numpy.array([len(steps.rewards) >= self.settings.most for steps in self.steps])
            for row in map(int, numpy.flatnonzero(begins)):
                number = int(self.worlds.episodes[row]) * self.rows + row
                if number < self.settings.episodes:
                    left -= 1
                    yield self._finish(row, number, outcome)
                self.steps[row] = _Steps()
            reward, observed = numpy.where(begins, 0.0, outcome.rewards), outcome.observed
            if left and begins.any():
                observed = numpy.where(_as_marks(begins, observed), self.worlds.begin(begins), observed)

    def _finish(self, row: int, number: int, outcome: StepOutcome) -> PlayedEpisode:
        cut = bool(outcome.cut[row] or not outcome.ended[row])
        success = float(outcome.success[row]) if outcome.success[row] >= 0 else None
        return PlayedEpisode(number, self.steps[row].episode, cut, success, () if number else tuple(self.frames))

    def _choose(
        self, flat: numpy.ndarray, reward: numpy.ndarray, begins: numpy.ndarray, acted: numpy.ndarray | None, state: Any
    ) -> tuple[numpy.ndarray, Any]:
        """Choose the action of each row."""
        random_actions = numpy.stack([self.space.sample() for _ in range(self.rows)])
        if self.actor is None:
            return random_actions, None
        done = None if acted is None else self._tensor(acted)
        observation = TimeStep(self._tensor(flat), self._tensor(reward), self._tensor(begins), done)
        try:
            output, state = self.actor.act(observation, state)
            check_finite_outputs(output)
        except (ValueError, IndexError) as error:  # too few learned positions, or weights that are not finite
            raise EnvironmentFailure(str(error)) from error
        actions = output.cpu().numpy().astype(self.space.dtype)
        if self.worlds.limits is not None:
            actions = numpy.clip(actions, *self.worlds.limits)
        by_chance = self.rng.random(self.rows) < self.settings.random
        return numpy.where(_as_marks(by_chance, actions), random_actions, actions), state

    def _tensor(self, numbers: numpy.ndarray) -> Tensor:
        tensor = torch.from_numpy(numpy.ascontiguousarray(numbers)).to(self.device)
        return tensor.float() if tensor.is_floating_point() else tensor

    def _render(self) -> numpy.ndarray:
        picture = self.worlds.vector.envs[0].render()
        if not isinstance(picture, numpy.ndarray) or picture.ndim != 3:
            raise ValueError(
                f"{self.settings.spec} cannot be drawn: render() returned {type(picture).__name__}. Leave out --out"
            )
        return picture

    def _warn_longer(self) -> None:
        """Warn once if an episode is longer than all training episodes."""
        if self.table is not None and max(len(steps.rewards) for steps in self.steps) > self.table:
            longer = f"episodes are longer than the {self.table:,} steps that this model was made for"
            warn(f"{longer}; the model treats all later steps as the last of these")
            self.table = None


def _actor(player: Player, settings: PlaySettings, rows: int) -> Actor:
    like = next(player.parameters())
    target_return = (
        None if settings.target_return is None else torch.full((rows,), settings.target_return, device=like.device)
    )
    return player.actor(target_return, seed=settings.seed)


def _as_marks(rows: numpy.ndarray, like: numpy.ndarray) -> numpy.ndarray:
    """Reshape a mask of rows so that it broadcasts to `like`."""
    return rows.reshape(-1, *[1] * (like.ndim - 1))
