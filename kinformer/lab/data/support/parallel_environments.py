"""Parallel environments: several copies of one environment, with a separate seed for each episode."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
from jaxtyping import Bool, Float

from kinformer.core.checks import check_at_least
from kinformer.core.warn import warn
from kinformer.lab.data.support.safe_scales import refuse_flattened
from kinformer.lab.environments.support.make_environment import make, refuse_without_gymnasium

SeedOf = Callable[[int, int], int]  # maps a row and the number of its episode to a seed
LOOKED = 100  # steps after which observations that float32 cannot tell apart cause a warning
ADVICE = "correct the environment, or choose another one; the same command with --resume continues"


class EnvironmentFailure(ValueError):
    """Error of an environment; its message of one line says which one failed, at which step, and why."""


class StepOutcome(NamedTuple):
    """The outcome of a step for each row, which is one of several parallel environments.

    observed: observations after the step.
    rewards: rewards of the step.
    ended: True if the episode ended.
    cut: True if a limit, such as of time, ended the episode (truncation), and not the task itself.
    success: success of an ended episode; -1 if it is unknown.
    """

    observed: numpy.ndarray
    rewards: Float[numpy.ndarray, " B"]
    ended: Bool[numpy.ndarray, " B"]
    cut: Bool[numpy.ndarray, " B"]
    success: Float[numpy.ndarray, " B"]


class EpisodeProgress(NamedTuple):
    """The seeds and actions that reproduce the running episodes of parallel environments.

    episodes: number of the running episode of each environment, from 0.
    history: actions so far in each running episode.
    steps: number of steps that the environments have taken so far.
    """

    episodes: numpy.ndarray
    history: Sequence[Sequence[Any]]
    steps: int


class ParallelEnvironments:
    """Several copies of one environment that take steps together; observations are arrays of numbers.

    An episode follows from its seed and its actions, so the running episodes (`progress`) can be reproduced. `resume`
    restarts these episodes and repeats their actions. Gymnasium flattens observations that have several parts or are
    discrete.

    spec: the environment with its keywords.
    rows: number of environments.
    seed_of: a function from a row and the number of its episode to a seed.

    Errors: ValueError if there are no rows, or if actions are neither discrete nor numbers. EnvironmentFailure if an
    environment raises an error, or if an observation or reward is not finite.
    """

    def __init__(self, spec: str, rows: int, seed_of: SeedOf):
        refuse_without_gymnasium()
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        self.spec, self.rows, self.seed_of = spec, check_at_least("rows", rows, 1), seed_of
        self.vector: Any = SyncVectorEnv(
            [lambda: flatten_observations(make(spec))] * rows, autoreset_mode=AutoresetMode.DISABLED
        )
        self.episodes = numpy.full(rows, -1)
        self.history: list[list[Any]] = [[] for _ in range(rows)]
        self.steps = 0
        self.shown: list[numpy.ndarray] = []
        self.limits = limits(self.vector.single_action_space)

    def begin(self, rows: Bool[numpy.ndarray, " B"]) -> numpy.ndarray:
        """Begin a new episode in the marked environments, and return the observations of all."""
        self.episodes = self.episodes + rows
        for row in numpy.flatnonzero(rows):
            self.history[row] = []
        return self._reset(rows)

    def step(self, actions: numpy.ndarray) -> StepOutcome:
        """Take one action in each environment. If an episode ended, call `begin` next for its environment."""
        self.steps += 1
        for row, action in enumerate(actions):
            self.history[row].append(action)
        observed, rewards, over, cut, info = self._call(self.vector.step, self._clip_actions(actions))
        self._refuse_infinite(observed, "an observation")
        self._refuse_infinite(rewards, "a reward")
        self._warn_flattened(observed)
        ended = over | cut
        return StepOutcome(observed, rewards.astype(numpy.float64), ended, cut & ~over, _success(info, ended))

    def _warn_flattened(self, observed: numpy.ndarray) -> None:
        """Warn once if observations lose information in float32, the dtype of training."""
        if self.steps > LOOKED or numpy.can_cast(observed.dtype, numpy.float32):
            return
        self.shown.append(observed.copy())
        if self.steps == LOOKED:
            try:
                refuse_flattened(self.spec, "observations", numpy.concatenate(self.shown))
            except ValueError as error:
                warn(str(error))
            self.shown = []

    @property
    def progress(self) -> EpisodeProgress:
        """The running episodes, in the form in which `resume` reproduces them."""
        return EpisodeProgress(self.episodes.copy(), [list(actions) for actions in self.history], self.steps)

    def resume(self, progress: EpisodeProgress) -> numpy.ndarray:
        """Restart the saved episodes, repeat their actions, and return the observations of all environments."""
        self.episodes, self.history, self.steps = (
            progress.episodes.copy(),
            [list(actions) for actions in progress.history],
            progress.steps,
        )
        self._reset(numpy.ones(self.rows, bool))
        return numpy.stack([self._call(self._replay, row) for row in range(self.rows)])

    def _replay(self, row: int) -> numpy.ndarray:
        env = self.vector.envs[row]
        observation = env.reset(seed=self._seed(row))[0]
        for action in self.history[row]:
            observation = env.step(self._clip_actions(action))[0]
        return observation

    def _clip_actions(self, actions: Any) -> Any:
        """Clip continuous actions to their limits."""
        return actions if self.limits is None else numpy.clip(actions, *self.limits)

    def close(self) -> None:
        """Close the environments."""
        self.vector.close()

    def _seed(self, row: int) -> int:
        return self.seed_of(row, int(self.episodes[row]))

    def _reset(self, rows: Bool[numpy.ndarray, " B"]) -> numpy.ndarray:
        seeds = [self._seed(row) if rows[row] else None for row in range(self.rows)]
        observed = self._call(self.vector.reset, seed=seeds, options={"reset_mask": rows.copy()})[0]
        self._refuse_infinite(observed, "an observation")
        return observed

    def _call(self, call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        try:
            return call(*args, **keywords)
        except Exception as error:  # foreign environments may raise any error
            raise EnvironmentFailure(
                f"{self._location} raised {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error

    def _refuse_infinite(self, numbers: numpy.ndarray, name: str) -> None:
        if not numpy.isfinite(numbers).all():
            row = int(numpy.argwhere(~numpy.isfinite(numbers))[0][0])
            raise EnvironmentFailure(
                f"{self._location} returned {name} that is not finite, in environment {row} at step "
                f"{len(self.history[row]):,} of its episode {self.episodes[row] + 1:,}"
            )

    @property
    def _location(self) -> str:
        return f"{self.spec}, at step {self.steps:,} of {self.rows} environments,"


def flatten_observations(env: Any) -> Any:
    """Return the environment `env` with arrays of numbers as observations."""
    from gymnasium.spaces import Box
    from gymnasium.wrappers import FlattenObservation

    return env if isinstance(env.observation_space, Box) else FlattenObservation(env)


def limits(space: Any) -> tuple[numpy.ndarray, numpy.ndarray] | None:
    """Return the limits of continuous actions of the action space `space`; None for discrete actions.

    Errors: ValueError if the actions are neither discrete from 0 on nor a row of numbers.
    """
    from gymnasium.spaces import Box, Discrete

    if isinstance(space, Discrete) and space.start == 0:
        return None
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise ValueError(
            f"the action space {space} is not supported: expected Discrete from 0 on, or Box [A]. Wrap the environment"
        )
    return space.low, space.high


def _success(info: dict[str, Any], ended: Bool[numpy.ndarray, " B"]) -> Float[numpy.ndarray, " B"]:
    """Return the success that ended episodes reported; -1 for the others."""
    success = info.get("success")
    if success is None:
        return numpy.full(len(ended), -1.0)
    return numpy.where(ended & info.get("_success", ended), numpy.asarray(success, float), -1.0)
