"""Rollouts: what is replayed is what was acted, whoever acted beside; going on, and environments that fail."""

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from kinformer import fit
from kinformer.core.model import Model
from kinformer.core.rollout import Observations, RolloutBatch
from kinformer.lab.data.env import EnvironmentData, read
from kinformer.lab.data.resumable_stream import StepError
from kinformer.lab.data.support.parallel_environments import EnvironmentFailure, ParallelEnvironments, StepOutcome
from kinformer.lab.data.support.rollout_stream import RolloutStream, normalise
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.loop import TrainingStopped
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.members.agent import agent
from kinformer.models.agent import Agent
from kinformer.models.support.recurrent_actor import single_step

STACKS = {
    "transformer_xl": "transformer_xl(d=8, depth=1, heads=2, segment=4, memory=5)",
    "gpt": "gpt(d=8, depth=1, heads=2, length=128)",
    "gtrxl": "gtrxl(d=8, depth=1, heads=2, segment=3, memory=4)",
    "linear": "linear_transformer(d=8, depth=1, heads=2)",
    "lstm": "lstm(d=8, depth=2)",
}
GOING_ON = [("lstm", 3), *(pytest.param(one, 0, marks=pytest.mark.prove) for one in STACKS)]
MAZE, GPT = "t_maze,corridor=2", "gpt(d=16, depth=1, heads=2, length=64)"
SLOW = ("gtrxl", "linear", "gpt")
EVERY = [pytest.param(one, marks=[pytest.mark.prove] * (one in SLOW)) for one in STACKS]


def made(stack: str, spec: str = MAZE, **keywords: Any) -> tuple[Agent, EnvironmentData]:
    """An agent of a tiny stack, in float64, for an environment."""
    data = read(spec)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = agent(stack=STACKS.get(stack, stack), **data.keywords, **keywords)
        for parameter in model.policy.parameters():  # at the start all actions are alike
            torch.nn.init.normal_(parameter)
    return model.double().train(), data


def rollouts(stack: str, spec: str = MAZE, rows: int = 3, length: int = 11, **keywords: Any) -> RolloutStream:
    model, data = made(stack, spec, **keywords)
    found = data.stream(model, rows, length, 0, 0)
    assert isinstance(found, RolloutStream)
    return found


def replayed(model: Agent, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    """The logs of what was done as the model says them now, and as it said them when it acted."""
    real = batch.observations.marks >= 0
    said = model.policy.distribution(model.replay(batch).policy).log_prob(batch.actions)
    return said[real], batch.log_p[real]


@pytest.mark.parametrize("burn_in", [0, 4])
@pytest.mark.parametrize("stack", EVERY)
def test_what_is_replayed_before_a_step_is_what_was_acted(stack: str, burn_in: int) -> None:
    there = rollouts(stack, burn_in=burn_in)
    per = there.model.epochs * there.pieces
    for step in (0, 1, per, per + 1):
        batch = there.at(step)
        assert (batch.burn_in.marks.shape[1] > 0) == (burn_in > 0 and step >= per)
        torch.testing.assert_close(*replayed(there.model, batch), atol=1e-10, rtol=0)


def test_the_memory_that_a_rollout_begins_with_counts() -> None:
    there = rollouts("transformer_xl")
    there.at(0)
    batch = there.at(there.model.epochs * there.pieces)
    said, before = replayed(there.model, batch._replace(state=None))
    assert (said - before).abs().max() > 1e-6


@pytest.mark.parametrize("stack", EVERY)
def test_an_episode_is_acted_as_if_it_were_alone(stack: str) -> None:
    """Neither earlier episodes of its row nor other rows change anything."""
    there = rollouts(stack, rows=4, length=24)
    there.at(0)
    held, model = there.held, there.model
    assert held is not None
    seen = 0
    for row in range(4):
        first = 0
        for end in (held.ended[row].nonzero().squeeze(1) + 1).tolist():
            alone = Observations(*(part[row : row + 1, first:end] for part in held.transitions))
            policy = model.policy.distribution(model.predict(alone, model.start(1, 8)).policy)
            said = policy.log_prob(held.actions[row, first:end])
            torch.testing.assert_close(said[0], held.log_p[row, first:end], atol=1e-10, rtol=0)
            seen, first = seen + (first > 0), end
    assert seen >= 4


def test_advantages_that_differ_by_rounding_alone_stay_small() -> None:
    better = torch.full((4, 50), 1000.0)
    better[::2] = torch.nextafter(better[::2], torch.tensor(2000.0))
    assert 0 < normalise(better).abs().max() < 1e-3
    other = torch.randn(4, 50) * 5 + 3
    wanted = (other - other.mean()) / other.std(correction=0)
    torch.testing.assert_close(normalise(other), wanted, atol=1e-6, rtol=1e-6)


def test_each_step_of_a_rollout_is_in_one_piece() -> None:
    there = rollouts("lstm", rows=5, length=23, pieces=2)
    batches = [there.at(step) for step in range(2)]
    rewards = torch.cat([batch.rewards[batch.observations.marks >= 0] for batch in batches])
    held = there.held
    assert held is not None and len(rewards) == 5 * 23
    torch.testing.assert_close(rewards.sum(), held.rewards.sum())
    assert sum(int(batch.ended[batch.observations.marks >= 0].sum()) for batch in batches) == int(held.ended.sum())


def test_what_was_done_and_earned_is_told_at_the_next_step_and_not_beyond_an_episode() -> None:
    there = rollouts("lstm", rows=4, length=30)
    there.at(0)
    held = there.held
    assert held is not None and held.ended[:, :-1].any()
    before, after = held.actions[:, :-1], held.transitions.acted[:, 1:]
    over = held.ended[:, :-1]
    assert torch.equal(after[~over], before[~over]) and (after[over] == -1).all()
    torch.testing.assert_close(
        held.transitions.earned[:, 1:].double(), held.rewards[:, :-1].where(~over, 0.0), atol=1e-6, rtol=0
    )


def test_a_continuous_policy_is_replayed_alike() -> None:
    there = rollouts("lstm", "MountainCarContinuous-v0", rows=2, length=5)
    batch = there.at(0)
    assert batch.actions.shape[2:] == (1,)
    torch.testing.assert_close(*replayed(there.model, batch), atol=1e-6, rtol=0)


def test_an_episode_that_is_cut_short_is_worth_what_was_expected_of_its_last_state() -> None:
    there, shown = rollouts("lstm", "masked_cartpole,length=3", rows=2, length=3), []
    step = there.worlds.step

    def watched(actions: numpy.ndarray) -> StepOutcome:
        shown.append(step(actions))
        return shown[-1]

    there.worlds.step = watched  # type: ignore[method-assign]
    there.at(0)
    held, model = there.held, there.model
    assert held is not None and held.ended[:, -1].all() and not held.ended[:, :-1].any() and shown[-1].cut.all()
    after = single_step(torch.from_numpy(shown[-1].observed).float(), held.actions[:, -1], held.rewards[:, -1].float())
    whole = Observations(*(torch.cat(part, 1) for part in zip(held.transitions, after, strict=True)))
    want = model.discount * model.predict(whole, model.start(2, 4)).value[:, -1]
    assert (want != 0).all()
    torch.testing.assert_close(held.returns[:, -1] - held.rewards[:, -1], want, atol=1e-9, rtol=0)


# Going on ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stack", "burn_in"), [("lstm", 3), *(pytest.param(one, 0, marks=pytest.mark.prove) for one in SLOW)]
)
def test_going_on_gives_the_weights_of_a_training_that_never_stopped(tmp_path: Path, stack: str, burn_in: int) -> None:
    def trained(folder: Path, *stops: float) -> Model:
        for place, stop in enumerate(stops):
            model, data = made(stack, burn_in=burn_in)
            model = model.float()
            settings = Settings(batch=3, length=7, measures=1)
            train(model, data, StepBudget(20), settings, folder=folder, resume=place > 0, until=stop)
        return model

    whole, stopped = trained(tmp_path / "whole", 1.0), trained(tmp_path / "stopped", 0.55, 1.0)
    for one, other in zip(whole.parameters(), stopped.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_was_in_eval_mode_is_trained_as_what_was_not(tmp_path: Path) -> None:
    found = []
    for mode in (True, False):
        for place, stop in enumerate((0.5, 1.0)):
            model, data = made("transformer_xl", epochs=1)
            settings, folder = Settings(batch=2, length=7, measures=1), tmp_path / str(mode)
            train(model.float().train(mode), data, StepBudget(6), settings, folder=folder, resume=place > 0, until=stop)
        found.append([parameter.detach() for parameter in model.parameters()])
    assert all(map(torch.equal, *found))


def test_chance_in_the_first_rollout_follows_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    at, drawn = RolloutStream.at, []

    def noted(self: RolloutStream, step: int) -> RolloutBatch:
        drawn.append(float(torch.rand(())))
        return at(self, step)

    monkeypatch.setattr(RolloutStream, "at", noted)
    model, data = made("lstm")
    with torch.random.fork_rng():
        for seed in (1, 2):
            torch.manual_seed(seed)
            train(model.float(), data, StepBudget(1), Settings(batch=2, length=4, measures=1))
    assert len(drawn) == 4 and drawn[:2] == drawn[2:]


def test_an_episode_longer_than_a_table_is_one_line_and_what_was_learned_is_kept(tmp_path: Path) -> None:
    model, data = made("gpt(d=8, depth=1, heads=2, length=9)", "t_maze,corridor=20")
    with pytest.raises(TrainingStopped, match=r"longer than the 9 positions.*weights before.*stack=.*length=") as said:
        train(model.float(), data, StepBudget(99), Settings(batch=2, length=4, measures=1), folder=tmp_path)
    assert "\n" not in str(said.value) and RunFolder(tmp_path).step == 2 * model.epochs * model.pieces
    there = data.stream(model, 2, 4, 0, 0)
    with pytest.raises(ValueError, match="longer than the 9 positions"):
        _ = there.validation_batches


OWN = """
from kinformer.lab.environments.t_maze import TMaze

class Odd(TMaze):
    def __init__(self, corridor: int = 2, after: int = 10**9, how: str = "raises", render_mode: str | None = None):
        super().__init__(corridor, render_mode)
        self.after, self.how, self.seen = after, how, 0

    def reset(self, **how):
        observed, told = super().reset(**how)
        return observed + self.seen * (self.how == "forgets"), told

    def step(self, action):
        self.seen += 1
        observed, reward, *rest = super().step(action)
        if self.seen >= self.after:
            if self.how == "raises":
                raise KeyError("no\\nmore")
            if self.how == "nan":
                reward = float("nan")
            if self.how == "shows":
                observed[0] = float("inf")
        return observed, reward, *rest
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return f"{file}:Odd"


WHY = {"raises": "raised KeyError: 'no.*more'", "nan": "a reward that is not finite", "shows": "an observation that is"}


@pytest.mark.parametrize("how", WHY)
def test_an_environment_that_fails_is_named_and_what_was_learned_is_kept(how: str, own: str, tmp_path: Path) -> None:
    model, data = made("lstm", f"{own},after=30,how={how}")
    run, model = tmp_path / "run", model.float()
    with pytest.raises((TrainingStopped, ValueError), match=WHY[how]) as said:
        train(model, data, StepBudget(200), Settings(batch=2, length=8, measures=1), folder=run)
    assert "\n" not in str(said.value) and own in str(said.value) and "--resume" in str(said.value)
    assert "step" in str(said.value)
    kept = RunFolder(run).step
    assert kept
    if how != "raises":
        return
    mended = read(own)
    mended = replace(mended, name=data.name)
    history = train(
        model, mended, StepBudget(kept + 9), Settings(batch=2, length=8, measures=1), folder=run, resume=True
    )
    assert history.step == kept + 9


def test_an_environment_that_fails_at_once_leaves_no_run(own: str, tmp_path: Path) -> None:
    model, data = made("lstm", f"{own},after=1")
    with pytest.raises(ValueError, match="raised KeyError"):
        train(model.float(), data, StepBudget(9), Settings(batch=2, length=8), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_measurement_that_fails_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> RolloutBatch:
        raise EnvironmentFailure("it broke")

    model, data = made("lstm")
    model, settings = model.float(), Settings(batch=2, length=4, measures=1)
    with monkeypatch.context() as patched:
        patched.setattr("kinformer.lab.data.support.rollout_stream.play_episodes", fails)
        with pytest.raises(ValueError, match="it broke"):
            train(model, data, StepBudget(3), settings, folder=tmp_path)
    assert RunFolder(tmp_path).step == 3
    assert train(model, data, StepBudget(3), settings, folder=tmp_path, resume=True).best.step == 3


def test_what_does_not_repeat_itself_is_said_when_it_goes_on(own: str, tmp_path: Path) -> None:
    for place in range(2):
        model, data = made("lstm", f"{own},how=forgets")
        with pytest.warns(UserWarning, match="gives other observations for the same seed") if place else nullcontext():
            settings, until = Settings(batch=2, length=9, measures=1), 0.5 + place / 2
            train(model.float(), data, StepBudget(18), settings, folder=tmp_path, resume=place > 0, until=until)


def test_a_policy_that_is_not_finite_stops_the_training() -> None:
    there = rollouts("lstm")
    there.model.policy.head.bias.data.fill_(math.nan)
    with pytest.raises(StepError, match="the policy network returned NaN or infinite numbers"):
        there.at(0)
    with pytest.raises(ValueError, match="the policy network returned NaN or infinite numbers"):
        _ = there.validation_batches


def test_measuring_plays_the_same_episodes_each_time() -> None:
    there = rollouts("lstm")
    one, other = (there.model.judge(there.validation_batches[0]).totals for _ in range(2))
    assert one == other and int(one["return"][1]) == len(there.watched)
    assert 0 <= float(one["success"][0]) <= int(one["success"][1]) == len(there.watched)


@pytest.mark.prove
@pytest.mark.parametrize(
    "stack",
    ["gpt(d=16, depth=1, heads=2, length=64)", "gpt(d=16, depth=1, heads=2, length=64, pattern=Causal() & Band(0))"],
)
def test_a_memory_turns_where_it_was_shown_and_what_has_none_does_not(stack: str) -> None:
    data = read("t_maze,corridor=3")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = agent(stack=stack, **data.keywords)
    history = fit(model, data, steps=480, batch=16, length=32, lr=2e-3)
    success = history.points[-1].extras["success"]
    assert success > 0.95 if "Band" not in stack else success < 0.75


def test_a_rollout_that_fails_leaves_what_is_kept_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window's keys are written over those that no step reads any more: a state that was handed over is spent."""
    made_ = rollouts("gpt(d=8, depth=1, heads=2, position=none, pattern=Causal() & Band(3))")
    made_.at(0)
    before = {name: x.clone() for name, x in made_.saved_tensors().items()}
    whole, steps = ParallelEnvironments.step, iter(range(4))

    def failing(self: ParallelEnvironments, actions: Any) -> StepOutcome:
        if next(steps, None) is None:
            raise EnvironmentFailure("it broke")
        return whole(self, actions)

    monkeypatch.setattr(ParallelEnvironments, "step", failing)
    with pytest.raises((StepError, EnvironmentFailure)):
        made_.at(made_.model.epochs * made_.pieces)
    after = made_.saved_tensors()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
