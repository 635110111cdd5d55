"""The environments here: Gymnasium's contract, what they reward, and what can be told from what they show."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from gymnasium.utils.env_checker import check_env

from kinformer.core.discover import modules
from kinformer.lab.environments.support.make_environment import make

OURS = {"t_maze": "t_maze,corridor=3", "repeat_previous": "repeat_previous,back=2,length=5"}
SPECS = {**OURS, "key_to_door": "key_to_door,size=3,steps=4", "masked_cartpole": "masked_cartpole,length=9"}
Episode = list[tuple[Any, float, dict[str, Any]]]


def episode(env: Any, act: Callable[[Any], int]) -> Iterator[tuple[Any, float, bool, bool, dict[str, Any]]]:
    """One episode: what each step gave."""
    observation, _ = env.reset()
    over = False
    while not over:
        step = env.step(act(observation))
        yield step
        observation, over = step[0], step[2] or step[3]


def test_each_file_is_made_by_its_name() -> None:
    assert set(SPECS) == set(modules("environments"))


@pytest.mark.parametrize("name", SPECS)
def test_gymnasium_s_own_checker_finds_nothing(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of advice; what is wrong is an error
        check_env(make(SPECS[name]), skip_render_check=True)


@pytest.mark.parametrize("name", SPECS)
def test_the_same_seed_gives_the_same_episodes(name: str) -> None:
    def play(seed: int) -> list[Any]:
        env, rng = make(SPECS[name], seed), numpy.random.default_rng(0)
        steps = [s for _ in range(3) for s in episode(env, lambda _: int(rng.integers(env.action_space.n)))]
        return [(numpy.asarray(observation).tolist(), *rest) for observation, *rest in steps]

    assert play(3) == play(3)
    assert play(3) != play(4)


def test_a_t_maze_asks_at_its_end_for_what_it_showed_at_its_start() -> None:
    env = make("t_maze,corridor=4", 0)
    for _ in range(8):
        first, _ = env.reset()
        assert first[:2].sum() == 1 and first[2]
        for _ in range(4):
            observation, reward, over, cut, _ = env.step(0)
            assert reward == 0 and not over and not cut and not observation[:2].any()
        assert observation[3] and not observation[2]
        _, reward, over, _, info = env.step(1 + int(first[1]))
        assert over and reward == 1 and info == {"success": True}


def test_a_t_maze_is_chance_to_who_remembers_nothing() -> None:
    env = make("t_maze,corridor=2", 0)
    ended = [list(episode(env, lambda observation: int(observation[3])))[-1] for _ in range(400)]
    share = numpy.mean([info["success"] for *_, info in ended])
    assert abs(share - 0.5) < 4 * 0.5 / 400**0.5


def test_a_t_maze_cuts_short_who_never_arrives() -> None:
    steps = list(episode(make("t_maze,corridor=3", 0), lambda _: 1))
    assert len(steps) == 8 and steps[-1][3] and not steps[-1][2]
    assert steps[-1][4] == {"success": False} and all(reward < 0 for _, reward, *_ in steps)


def test_repeating_what_was_shown_returns_1() -> None:
    env, observations = make("repeat_previous,back=3,length=6", 0), []

    def act(observation: int) -> int:
        observations.append(observation)
        return observations[-4] if len(observations) > 3 else 0

    steps = list(episode(env, act))
    assert sum(reward for _, reward, *_ in steps) == pytest.approx(1) and steps[-1][4] == {"success": 1.0}
    assert len(steps) == 9 and [reward for _, reward, *_ in steps[:3]] == [0, 0, 0]


def test_a_masked_cart_shows_places_and_no_velocity() -> None:
    masked, whole = make("masked_cartpole,worth=0.25", 5), make("CartPole-v1", 5)
    for _ in range(2):
        observation, full_observation = masked.reset(seed=7)[0], whole.reset(seed=7)[0]
        for action in (0, 1, 1):
            bounds = whole.unwrapped.x_threshold, whole.unwrapped.theta_threshold_radians  # type: ignore[attr-defined]
            numpy.testing.assert_allclose(observation, full_observation[[0, 2]] / bounds * 5, rtol=1e-6)
            (observation, reward, *_), full_observation = masked.step(action), whole.step(action)[0]
            assert reward == 0.25 and make("masked_cartpole", 5).step(action)[1] == 1
    with pytest.raises(ValueError, match="worth=0.0: give a number above 0 and below inf"):
        make("masked_cartpole,worth=0")


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_a_t_maze_can_be_looked_at(mode: str) -> None:
    env = make("t_maze,corridor=3", 0, render_mode=mode)
    before, _ = env.render(), env.step(0)
    assert not numpy.array_equal(before, env.render())


def test_a_door_is_worth_something_to_who_took_the_key_two_rooms_before() -> None:
    env = make("key_to_door,size=3,steps=6", 0)

    def towards(observation: Any) -> int:
        (row, column), (target_row, across) = observation[3:5] * 2, numpy.round(observation[5:] * 3) - 1
        if target_row != row:
            return 2 + int(target_row > row)
        return int(across > column)

    def aimed(observation: Any) -> int:
        return towards(observation) if observation[5:].any() else 0

    def only_at_the_door(observation: Any) -> int:
        return aimed(observation) if observation[2] else 0

    for with_key in (True, False):
        ended = []
        for _ in range(12):
            steps = list(episode(env, aimed if with_key else only_at_the_door))
            in_first = [observation for observation, *_ in steps if observation[0]]
            took = any(not observation[5:].any() for observation in in_first)
            assert [info for *_, info in steps[:-1]] == [{}] * (len(steps) - 1)
            if len(in_first) > 1 and steps[-1][2] and len(steps) < 18:  # it came to the door
                ended.append((took, steps[-1][1], steps[-1][4]["success"]))
        assert ended and all(worth == took == success for took, worth, success in ended)
        assert all(took for took, *_ in ended) if with_key else not all(took for took, *_ in ended)
