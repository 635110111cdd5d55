"""Rolling out: whose episodes are whose, what an actor is told, and where it ends."""

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from kinformer.core.actor import Actor, Player, TimeStep
from kinformer.lab.data.support.parallel_environments import EnvironmentFailure, ParallelEnvironments
from kinformer.lab.data.support.play_episodes import PlaySettings, roll_out
from kinformer.members.agent import agent
from kinformer.members.decision_transformer import TINY, decision_transformer
from kinformer.models.trajectory import Trajectory

ACTING: Any = partial(agent, "gpt(d=8, depth=1, heads=2, length=4)", (3,))
COUNTING = f"{Path(__file__).with_name('counting.py')}:Counting"


class Noted(Actor):
    """Takes 1 at odd steps of the world, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[TimeStep] = []

    def start(self, rows: int) -> Tensor:
        return torch.zeros(rows)

    def act(self, seen: TimeStep, state: Tensor) -> tuple[Tensor, Tensor]:
        self.told.append(seen)
        return (seen.observation[:, 1] % 2).long(), state + 1


def noting() -> tuple[Any, Noted]:
    model: Any = decision_transformer(**TINY)
    noted = Noted()
    model.actor = lambda asked=None, seed=0: noted
    return model, noted


def test_episodes_begin_by_their_number_and_each_is_played_once() -> None:
    model, _ = noting()
    found = {one.number: one for one in roll_out(model, PlaySettings(COUNTING, 21, seed=5))}
    assert sorted(found) == list(range(21))
    for number, one in found.items():
        digit = (5 + number) % 4
        assert len(one.episode.rewards) == 2 + digit and not one.cut and one.success is None
        assert one.episode.states[:, 0].tolist() == [digit] * (2 + digit)
        assert one.episode.states[:, 1].tolist() == list(range(2 + digit))
        assert one.episode.actions.tolist() == [n % 2 for n in range(2 + digit)]
        assert one.episode.rewards.tolist() == one.episode.actions.tolist()


def test_an_actor_is_told_what_was_done_what_it_was_worth_and_where_episodes_begin() -> None:
    model, noted = noting()
    found = list(roll_out(model, PlaySettings(COUNTING, 6, random=0.5, seed=1)))
    assert {int(a) for one in found for a in one.episode.actions} == {0, 1}
    other = 0
    for before, seen in zip(noted.told, noted.told[1:], strict=False):
        assert seen.acted is not None
        assert torch.equal(seen.begins, seen.observation[:, 1] == 0)
        assert torch.equal(seen.reward, torch.where(seen.begins, 0.0, seen.acted.float()))
        other += int((seen.acted != before.observation[:, 1] % 2).sum())
    assert other > 0  # chance took some
    assert noted.told[0].acted is None and bool(noted.told[0].begins.all())


def test_no_episodes_and_no_rows_are_one_line() -> None:
    with pytest.raises(ValueError, match="^episodes=0: give a whole number of at least 1$"):
        next(roll_out(None, PlaySettings(COUNTING, 0)))
    with pytest.raises(ValueError, match="^rows=0: give a whole number of at least 1$"):
        ParallelEnvironments(COUNTING, 0, lambda row, episode: 0)


@pytest.mark.parametrize("far", [0.0, 1e12])
def test_observations_that_float32_does_not_tell_apart_are_said_once(far: float) -> None:
    worlds = ParallelEnvironments(f"{COUNTING.replace('Counting', 'Distant')},far={far}", 2, lambda row, number: row)
    worlds.begin(numpy.ones(2, bool))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(250):
            worlds.step(numpy.zeros(2, int))
    worlds.close()
    lines = [str(one.message) for one in told if "float32" in str(one.message)]
    assert len(lines) == (far > 0) and all("the values of column 1 of observations: got" in line for line in lines)


def test_steps_are_told_as_they_are_taken() -> None:
    model, _ = noting()
    heard: list[int] = []
    first = next(roll_out(model, PlaySettings(COUNTING, 3, seed=2), heard.append))
    assert heard == [3] * len(first.episode.rewards)


def test_what_does_not_end_is_cut_and_steps_beyond_the_training_s_are_told_of() -> None:
    model: Any = decision_transformer(**{**TINY, "steps": 5})
    with pytest.warns(UserWarning, match="episodes are longer than the 5 steps that this model was made for"):
        (one,) = roll_out(model, PlaySettings(f"{COUNTING},endless=true", 1, most=9))
    assert one.cut and len(one.episode.rewards) == 9


def test_no_more_pictures_are_held_than_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinformer.lab.data.support.play_episodes.FRAMES", 3)
    first, second = sorted(roll_out(None, PlaySettings("key_to_door,size=3,steps=4", 2, render=True)))
    assert len(first.frames) == 3 < len(first.episode.rewards) and not second.frames


def test_chance_alone_acts_without_a_player() -> None:
    found = [one for one in roll_out(None, PlaySettings("Pendulum-v1", 2, most=7))]
    again = [one for one in roll_out(None, PlaySettings("Pendulum-v1", 2, most=7))]
    for one, other in zip(found, again, strict=True):
        assert one.episode.actions.shape == (7, 1) and numpy.array_equal(one.episode.actions, other.episode.actions)


def test_other_observations_and_actions_are_refused() -> None:
    model: Any = decision_transformer(**TINY)
    for spec, said in (
        ("CartPole-v1", "CartPole-v1 has 4 numbers in an observation, but this decision_transformer reads 3"),
        ("Pendulum-v1", "Pendulum-v1 takes 1 numbers per action, but this decision_transformer has 2 discrete actions"),
    ):
        with pytest.raises(ValueError, match=said):
            list(roll_out(model, PlaySettings(spec, 1)))
    assert isinstance(model, Trajectory) and isinstance(model, Player)


def test_weights_that_are_spoiled_are_one_line() -> None:
    model: Any = decision_transformer(**{**TINY, "actions": 1}, discrete=False)
    with torch.no_grad():
        model.action.bias.fill_(float("nan"))
    with pytest.raises(EnvironmentFailure, match="a model output for an action is NaN or infinite"):
        list(roll_out(model, PlaySettings("Pendulum-v1", 1)))


@pytest.mark.parametrize("member", ["agent", "decision_transformer"])
def test_no_kind_is_chosen_by_weights_that_are_spoiled(member: str) -> None:
    made: dict[str, Any] = {"agent": ACTING, "decision_transformer": lambda: decision_transformer(**TINY)}
    model = made[member]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(EnvironmentFailure, match="a model output for an action is NaN or infinite"):
        list(roll_out(model, PlaySettings(COUNTING, 1)))


def test_an_episode_beyond_a_table_is_one_line_and_what_ended_before_is_given() -> None:
    ended = []
    with pytest.raises(EnvironmentFailure, match="position 4 is beyond the table of 4"):
        for one in roll_out(ACTING(), PlaySettings(COUNTING, 4)):
            ended.append(one.number)
    assert ended == [0, 1, 2]


def test_an_agent_of_numbers_acts() -> None:
    """What it says is drawn from what its layers made, and no gradient goes with it."""
    model = agent("gpt(d=8, depth=1, heads=2)", (3,), 1, False)
    (one,) = roll_out(model, PlaySettings("Pendulum-v1", 1, seed=3, most=6))
    assert one.episode.actions.shape == (6, 1) and numpy.isfinite(one.episode.actions).all()


def test_a_return_beyond_those_that_were_learned_from_is_a_guess() -> None:
    model = decision_transformer(**TINY)
    model.measured.span.copy_(torch.tensor([1.0, 9.0]))
    model.measured.known.fill_(True)
    with pytest.warns(UserWarning, match="target_return is outside the returns of the training, 1 to 9"):
        model.actor(torch.tensor([9.0, 10.0]))
    model.actor(torch.tensor([1.0, 9.0]))


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install '.\[rl\]'"):
        next(iter(roll_out(None, PlaySettings("t_maze", 1))))
