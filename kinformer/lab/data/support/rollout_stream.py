"""Rollouts: batches of the steps that an agent just took in environments, with its state carried on."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import State
from kinformer.core.rollout import Observations, RolloutBatch
from kinformer.core.state import fork, reset
from kinformer.core.warn import warn
from kinformer.lab.data.batches import device_of
from kinformer.lab.data.resumable_stream import ResumableStream, StepError
from kinformer.lab.data.support.frozen_buffers import FrozenBuffers
from kinformer.lab.data.support.parallel_environments import (
    ADVICE,
    EnvironmentFailure,
    EpisodeProgress,
    ParallelEnvironments,
    StepOutcome,
)
from kinformer.lab.data.support.rollout import Rollout, pieces, under_way
from kinformer.lab.data.support.safe_scales import tells_apart
from kinformer.lab.data.support.state_tensors import restore_state, state_tensors
from kinformer.models.agent import Agent
from kinformer.models.support.recurrent_actor import PolicyOutput, single_step
from kinformer.nn.losses.ppo import advantages

LONGEST = 10_000  # maximum steps of a measured episode, because some environments never end
FIRST = -1  # the previous action at the start of an episode


class RolloutState(NamedTuple):
    """The next inputs and the state of the agent, for each row, which is one environment.

    observed: the observation.
    acted: the previous action.
    earned: the previous reward.
    state: the state of the agent.
    """

    observed: Tensor
    acted: Tensor
    earned: Float[Tensor, " B"]
    state: State

    @property
    def transition(self) -> Observations:
        """The observation, the previous action and the previous reward, as the input of one step."""
        return single_step(self.observed, self.acted, self.earned)


class RolloutStream(ResumableStream):
    """Rollouts of `length` steps in each of `rows` environments; each is learned from several times.

    The next rollout uses the policy as these training steps have changed it. With given weights, the actions of an
    agent follow from the seed, the row (environment), the episode and the step. A checkpoint holds the current rollout,
    the state of the agent, its changed buffers and the actions of the running episodes. A resumed training repeats
    these actions to restore the environments.

    The state of a row is reset when its episode ends. Rows are cut at the ends of episodes, so each part is read
    separately. A part that continues an episode begins with the state of that time. Before it stand `burn_in` steps,
    which the agent reads but does not learn from.

    Before a rollout, the agent reads these steps again with its new weights. Buffers that a training step changes (by
    `after_step`) stay fixed until the next rollout. With unchanged weights, each action therefore has the same
    probability in learning as in the rollout.

    model: the agent.
    spec: the environment.
    watched: seeds of the validation episodes.
    rows: number of environments.
    length: steps of a rollout.
    seed: seed of episodes and actions.

    Errors: StepError if an environment fails, if the policy is not finite, or if an episode is longer than the agent's
    table of learned positions.
    """

    def __init__(self, model: Agent, spec: str, watched: range, rows: int, length: int, seed: int) -> None:
        self.model, self.spec, self.watched, self.length, self.seed = model, spec, watched, length, seed
        self.rows, self.pieces = rows, min(model.pieces, rows)
        self.worlds = ParallelEnvironments(spec, rows, lambda row, episode: _seed(seed, row, episode))
        self.number = -1
        self.now: RolloutState | None = None
        self.early: State = ()
        self.held: Rollout | None = None
        self.window = 0
        self.done = self.worlds.progress  # up to the end of the last whole rollout
        self.frozen = FrozenBuffers(model)

    def at(self, step: int) -> RolloutBatch:
        number, step = divmod(step, self.model.epochs * self.pieces)
        if number != self.number:
            try:
                with torch.no_grad():
                    self.frozen.release()
                    self.held = self._collect()
            except EnvironmentFailure as error:
                raise StepError(str(error), ADVICE) from error
            self.number = number
        assert self.held is not None
        epoch, piece = divmod(step, self.pieces)
        order = numpy.random.default_rng((self.seed, number, epoch)).permutation(self.rows)
        return pieces(self.held, self.window, sorted(numpy.array_split(order, self.pieces)[piece].tolist()))

    def moving(self) -> AbstractContextManager[None]:
        return self.frozen.moving()

    # Acting ----------------------------------------------------------------------------------------------------------

    def _collect(self) -> Rollout:
        """Collect the next steps of all rows, after the steps of the previous rollout that are read again."""
        begun = self.now if self.now is not None else _begin_episodes(self.model, self.worlds, self.length)
        burn_in, before = min(self.model.burn_in, self.length), self.held
        self.window = 0 if before is None else burn_in
        stored = self.early if self.window else begun.state
        # steps change a fork, so that a failed rollout leaves the state as it was
        state = self._recompute_state(before) if before is not None and self.window else fork(begun.state)
        now = begun._replace(state=state)
        steps, early = [], self.early
        for t in range(self.length):
            if burn_in and t == self.length - burn_in:
                early = fork(now.state)
            step, now = self._step(now)
            steps.append(step)
        last = _agent_output(self.model, now.transition, fork(now.state), self.worlds).value[:, 0]
        self.now, self.early, self.done, new = now, early, self.worlds.progress, self._join_steps(steps, last, stored)
        return new.prepend_window(before, self.window) if before is not None and self.window else new

    def _recompute_state(self, before: Rollout) -> State:
        """Return the state after the last `window` steps of the previous rollout, computed with the current weights."""
        transitions, state = under_way(before, self.early, self.window)
        return self.model.predict(transitions, fork(state)).state if transitions.marks.shape[1] else fork(state)

    def _step(self, now: RolloutState) -> tuple["RolloutStep", RolloutState]:
        output = _agent_output(self.model, now.transition, now.state, self.worlds)
        done, log_p = _draw_actions(self.model, output, self.seed, self.worlds)
        outcome = self.worlds.step(done.numpy())
        value, state = output.value[:, 0], output.state
        after = _state_after(outcome, done, state, now)
        # a truncated episode is bootstrapped with the expected value, not 0
        final = torch.zeros_like(value)
        if outcome.cut.any():
            final = (
                _agent_output(self.model, after.transition, fork(state), self.worlds)
                .value[:, 0]
                .where(_to_device(outcome.cut, value), 0.0)
            )
        step = RolloutStep(now.transition, done.to(now.acted.device), log_p, value, final, outcome)
        return step, _restart_ended(self.worlds, outcome, after)

    def _join_steps(self, steps: list["RolloutStep"], last: Tensor, stored: State) -> Rollout:
        """Join the steps of a rollout and compute their advantages."""
        model = self.model
        transitions = Observations(
            *(torch.cat(part, 1) for part in zip(*(step.transition for step in steps), strict=True))
        )
        values, final = (torch.stack([getattr(step, name) for step in steps], 1) for name in ("value", "final"))
        outcomes = StepOutcome(*(numpy.stack(part, 1) for part in zip(*(step.outcome for step in steps), strict=True)))
        rewards, ended = _to_device(outcomes.rewards, values).to(values.dtype), _to_device(outcomes.ended, values)
        following = torch.where(ended, final, torch.cat([values[:, 1:], last[:, None]], 1))
        better = advantages(rewards, values, following, ended, model.discount, model.trace)
        learned = {
            "actions": torch.stack([step.done for step in steps], 1),
            "log_p": torch.stack([step.log_p for step in steps], 1),
            "advantages": normalise(better),
            "returns": better + values,
            "rewards": rewards,
            "ended": ended,
            "success": _to_device(outcomes.success, values).to(values.dtype),
        }
        return Rollout(transitions, stored, **learned)

    # Measuring -------------------------------------------------------------------------------------------------------

    @property
    def validation_batches(self) -> tuple[RolloutBatch, ...]:
        """One batch of episodes that the agent plays now in eval mode, with their returns and successes.

        Errors: ValueError if an environment fails, or if the agent cannot continue.
        """
        try:
            with evaluating(self.model):
                return (play_episodes(self.model, self.spec, self.watched),)
        except EnvironmentFailure as error:
            raise EnvironmentFailure(f"{error}; {ADVICE}") from error
        except StepError as stop:
            raise ValueError(f"{stop}; {stop.advice}") from stop

    # Saved state -----------------------------------------------------------------------------------------------------

    def saved_tensors(self) -> dict[str, Tensor]:
        tensors, places = state_tensors((self.now, self.early, self.held))
        actions = [
            torch.as_tensor(numpy.asarray(action)) for row_actions in self.done.history for action in row_actions
        ]
        progress = {
            "places": torch.tensor(places),
            "counts": torch.tensor([self.number, self.window, self.done.steps]),
            "episodes": torch.from_numpy(self.done.episodes),
            "sizes": torch.tensor([len(row_actions) for row_actions in self.done.history]),
            "history": torch.stack(actions) if actions else torch.zeros(0),
        }
        buffers = {f"moved/{name}": buffer for name, buffer in self.frozen.changed.items()}
        return {f"rollouts/{name}": tensor for name, tensor in (tensors | progress | buffers).items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from saved tensors; call `at` once before, because a rollout gives the form of the state."""
        saved = {
            name.removeprefix("rollouts/"): tensor for name, tensor in tensors.items() if name.startswith("rollouts/")
        }
        like, device = (self.now, self.early, self.held), device_of(self.model)
        self.now, self.early, self.held = restore_state(like, saved, saved["places"].tolist(), device)
        self.frozen.changed = {
            name.removeprefix("moved/"): buffer.to(device)
            for name, buffer in saved.items()
            if name.startswith("moved/")
        }
        self.number, self.window, steps = saved["counts"].tolist()
        history = [list(part.numpy()) for part in saved["history"].split(saved["sizes"].tolist())]
        self.done = EpisodeProgress(saved["episodes"].numpy(), history, steps)
        try:
            observed = torch.from_numpy(self.worlds.resume(self.done)).float().to(device)
        except EnvironmentFailure as error:
            raise ValueError(f"{error}; {ADVICE}") from error
        if not torch.equal(observed, self.now.observed):
            warn(
                f"{self.spec} gives other observations for the same seed and actions, so the training continues with "
                "other episodes than the saved ones"
            )
            self.now = self.now._replace(observed=observed)


class RolloutStep(NamedTuple):
    """One step of a rollout in all rows (environments).

    transition: the inputs of the agent.
    done: the actions.
    log_p: log probabilities of the actions.
    value: the agent's estimate of the return from this step on.
    final: its estimate of the return after the step if the episode was truncated, else 0.
    outcome: the outcome of the step.
    """

    transition: Observations
    done: Tensor
    log_p: Float[Tensor, " B"]
    value: Float[Tensor, " B"]
    final: Float[Tensor, " B"]
    outcome: StepOutcome


def play_episodes(model: Agent, spec: str, seeds: range) -> RolloutBatch:
    """Play one episode per seed; each is returned as one step with its total return and its success.

    model: the agent.
    spec: the environment.
    seeds: seeds of the episodes.
    """
    worlds = ParallelEnvironments(spec, len(seeds), lambda row, episode: seeds[row])
    earned, success = numpy.zeros(len(seeds)), numpy.full(len(seeds), -1.0)
    ended = numpy.zeros(len(seeds), bool)
    now = _begin_episodes(model, worlds, 1)
    for _ in range(LONGEST):
        done, _ = _draw_actions(
            model, output := _agent_output(model, now.transition, now.state, worlds), seeds[0], worlds
        )
        outcome = worlds.step(done.numpy())
        earned += numpy.where(ended, 0.0, outcome.rewards)
        success = numpy.where(ended, success, outcome.success)
        ended |= outcome.ended
        now = _restart_ended(worlds, outcome, _state_after(outcome, done, output.state, now))
        if ended.all():
            break
    worlds.close()
    device = now.earned.device

    def to_column(values: numpy.ndarray) -> Tensor:
        return torch.from_numpy(values)[:, None].to(device)

    transition, nothing = now.transition, torch.zeros(len(seeds), 1, device=device)
    before = Observations(*(part[:, :0] for part in transition))
    return RolloutBatch(
        transition,
        before,
        None,
        transition.acted,
        nothing,
        nothing,
        nothing,
        to_column(earned),
        to_column(ended | True),
        to_column(success),
    )


def normalise(better: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Standardize the advantages `better`; if they differ only by rounding, subtract only the mean."""
    spread = better.std(correction=0)
    spread = spread.where(tells_apart(spread[None], better.reshape(-1, 1))[0], 1.0)
    return (better - better.mean()) / (spread + 1e-8)


def _begin_episodes(model: Agent, worlds: ParallelEnvironments, length: int) -> RolloutState:
    """Begin an episode in every row, and return its first state."""
    device, rows = device_of(model), worlds.rows
    observed = torch.from_numpy(worlds.begin(numpy.ones(rows, bool))).float().to(device)
    acted = torch.full((rows,), FIRST) if model.discrete else torch.zeros(rows, model.actions)
    return RolloutState(observed, acted.to(device), torch.zeros(rows, device=device), model.start(rows, length))


def _agent_output(model: Agent, transitions: Observations, state: State, worlds: ParallelEnvironments) -> PolicyOutput:
    """Return the policy for a step of all rows.

    Raise StepError if it is not finite, or if the step is beyond a table of positions.
    """
    table, step = None if model.position is None else model.position.length, max(map(len, worlds.history))
    if table is not None and step >= table:
        why = f"an episode of {worlds.spec} is longer than the {table:,} positions of the agent's stack"
        raise StepError(why, f"give a larger length, such as stack='...(length={4 * table})', and start a new training")
    output = model.predict(transitions, state)
    if not bool(output.policy.isfinite().all()):
        raise StepError(
            "the policy network returned NaN or infinite numbers", "try a lower lr, or start --from an earlier run"
        )
    return output


def _draw_actions(
    model: Agent, output: PolicyOutput, seed: int, worlds: ParallelEnvironments
) -> tuple[Tensor, Float[Tensor, " B"]]:
    """Draw actions on the CPU by seed, row, episode and step; return them with their log probabilities."""
    places = zip(range(worlds.rows), worlds.episodes.tolist(), worlds.history, strict=True)
    rngs = [numpy.random.default_rng((seed, row, episode, len(done))) for row, episode, done in places]
    done = model.policy.sample(output.policy[:, 0], rngs)
    return done, model.policy.distribution(output.policy[:, 0]).log_prob(done.to(output.policy.device))


def _state_after(outcome: StepOutcome, done: Tensor, state: State, now: RolloutState) -> RolloutState:
    """Return the inputs after a step, also in rows with an ended episode."""
    observed = torch.from_numpy(outcome.observed).float().to(now.observed.device)
    return RolloutState(observed, done.to(now.acted), torch.from_numpy(outcome.rewards).to(now.earned), state)


def _restart_ended(worlds: ParallelEnvironments, outcome: StepOutcome, now: RolloutState) -> RolloutState:
    """Begin another episode with a new state in rows with an ended episode."""
    if not outcome.ended.any():
        return now
    over = _to_device(outcome.ended, now.earned)
    first = FIRST if now.acted.dim() == 1 else 0
    acted = torch.where(over if now.acted.dim() == 1 else over[:, None], first, now.acted)
    observed = torch.from_numpy(worlds.begin(outcome.ended)).float().to(now.observed.device)
    return RolloutState(observed, acted, now.earned.where(~over, 0.0), reset(now.state, over))


def _to_device(numbers: numpy.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(like.device)


def _seed(seed: int, row: int, episode: int) -> int:
    return int(numpy.random.SeedSequence((seed, row, episode)).generate_state(1)[0])
