"""Episodes as data: rows of the last steps, returns to go, the best of them, Minari's files, and wrong ones."""

import errno
import os
from pathlib import Path
from typing import Any

import h5py
import numpy
import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.core.batch import EpisodeSteps
from kinformer.lab.data.offline import EpisodeData, read
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.offline_episodes import Episode, episodes, write_episodes
from kinformer.lab.data.support.play_episodes import PlaySettings, roll_out
from kinformer.lab.member_choice import parse_member
from kinformer.lab.train.fit import fit
from kinformer.lab.train.member_fit import fit_keywords
from kinformer.members.behaviour_cloning import behaviour_cloning
from kinformer.members.decision_transformer import TINY, decision_transformer


def make_episodes(count: int = 40, numbers: bool = False, seed: int = 0) -> list[Episode]:
    rng = numpy.random.default_rng(seed)
    result = []
    for _ in range(count):
        size = int(rng.integers(1, 12))
        states = rng.normal(3, 5, (size, 3)).astype(numpy.float32)
        actions = rng.normal(0, 4, (size, 2)).astype(numpy.float32) if numbers else rng.integers(0, 2, size)
        result.append(Episode(states, actions, rng.normal(0, 1, size).astype(numpy.float32)))
    return result


def spec_of(folder: Path, episodes: list[Episode]) -> str:
    write_episodes(folder / "a.npz", episodes)
    return f"offline={folder}/a.npz"


def as_read(steps: EpisodeSteps, row: int) -> dict[str, numpy.ndarray]:
    real = steps.times[row] >= 0
    return {name: part[row][real].numpy() for name, part in steps._asdict().items()}


def test_rows_are_the_last_steps_of_an_episode_padded_to_the_left(tmp_path: Path) -> None:
    originals = make_episodes()
    data = read_spec(spec_of(tmp_path, originals))
    assert isinstance(data, EpisodeData) and data.keywords == {"states": 3, "actions": 2, "discrete": True, "steps": 11}
    by_state = {episode.states[t].tobytes(): (episode, t) for episode in originals for t in range(len(episode.rewards))}
    model = decision_transformer(**TINY)
    stream, lengths = data.stream(model, 64, 128, 0, 1 << 16), set()
    batches = [stream.at(step) for step in range(6)]
    assert all(map(torch.equal, batches[3], stream.at(3)))
    for batch in [*batches, *stream.validation_batches]:
        for row in range(len(batch.times)):
            window = as_read(batch, row)
            assert window["times"].tolist() == list(range(window["times"][0], window["times"][-1] + 1))
            assert (batch.times[row, -1] >= 0).all()
            for n, t in enumerate(window["times"]):
                episode, at = by_state[window["states"][n].tobytes()]
                assert at == t and window["actions"][n] == episode.actions[t]
                assert numpy.isclose(window["returns"][n], episode.rewards[t:].sum(), rtol=1e-4, atol=1e-5)
            lengths.add(len(window["times"]))
            assert len(window["times"]) == min(4, window["times"][-1] + 1) or any(
                batch is episode for episode in stream.validation_batches
            )
    assert lengths == {1, 2, 3, 4}
    watched = torch.cat([batch.states[batch.times >= 0] for batch in stream.validation_batches])
    assert sorted(map(tuple, watched.tolist())) == sorted(map(tuple, data.valid.states.tolist()))
    splits = [{episode.tobytes() for episode in part.states.numpy()} for part in (data.train, data.valid, data.test)]
    assert sum(map(len, splits)) == len(set.union(*splits)) == len(by_state)


def test_the_best_percent_of_steps_are_those_of_the_highest_returns(tmp_path: Path) -> None:
    data = read_spec(spec_of(tmp_path, make_episodes()))
    assert isinstance(data, EpisodeData)
    at, whole = data.train.best(20), data.train.episode_returns
    best = set(data.train.returns[at][data.train.times[at] == 0].tolist())
    rest = set(whole.tolist()) - best
    assert min(best) > max(rest) and 0.2 <= len(at) / len(data.train.times) < 0.2 + 12 / len(data.train.times)
    chosen = {tuple(state) for state in data.train.states[at].tolist()}
    model = behaviour_cloning(**TINY, best=20)
    batch = data.stream(model, 200, 1, 0, 1 << 16).at(0)
    assert {tuple(state) for state in batch.states[batch.times >= 0].tolist()} <= chosen


def test_rewards_at_the_end_leave_all_to_go_until_then_and_the_model_is_told(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, make_episodes())
    data, plain = read_spec(f"{spec},reward=end"), read_spec(spec)
    assert isinstance(data, EpisodeData) and isinstance(plain, EpisodeData)
    assert torch.allclose(data.train.episode_returns, plain.train.episode_returns, atol=1e-5)
    for first, size in zip(data.train.episode_starts, torch.diff(data.train.episode_starts), strict=False):
        assert len(set(data.train.returns[first : first + size].tolist())) == 1
    model: Any = decision_transformer(**TINY)
    data.store_scales(model)
    assert model.measured.delayed


def test_the_mean_action_is_judged_in_the_unit_that_the_model_keeps(tmp_path: Path) -> None:
    """Episodes whose actions are ten times as large are judged by the largest actions that were learned from."""
    learned, other = (
        make_episodes(numbers=True),
        [episode._replace(actions=10 * episode.actions) for episode in make_episodes(numbers=True, seed=1)],
    )
    first, second = read_spec(spec_of(tmp_path, learned)), read_spec(spec_of(tmp_path, other))
    assert isinstance(first, EpisodeData) and isinstance(second, EpisodeData)
    model: Any = decision_transformer(**{**TINY, "discrete": False})
    first.store_scales(model)
    largest = first.train.actions.abs().amax(0)
    apart = (second.test.actions - second.train.actions.mean(0)) / largest
    levels = second.levels(model, "test", 1, 1 << 16)
    assert levels["always the mean"] == pytest.approx(float(apart.square().mean()), rel=1e-5)


@pytest.mark.parametrize("numbers", [False, True])
def test_scales_are_those_of_train_and_stay_with_the_weights(numbers: bool, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, make_episodes(numbers=numbers))
    data = read_spec(spec)
    assert isinstance(data, EpisodeData)
    member = fit_keywords(parse_member("decision_transformer", ["d=8", "depth=1", "context=3", "dropout=0"]), data)
    model: Any = member.build(0)
    assert (model.discrete, model.actions, model.steps) == (not numbers, 2, 11)
    fit(model, spec, steps=2, batch=4, out=tmp_path / "run")
    saved = load(tmp_path / "run").measured
    torch.testing.assert_close(saved.mean, data.train.states.mean(0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(saved.deviation, data.train.states.std(0, correction=0), atol=1e-4, rtol=1e-4)
    assert saved.returns == data.train.returns.abs().max() and bool(saved.known)
    assert saved.span.tolist() == [data.train.episode_returns.min(), data.train.episode_returns.max()]
    if numbers:
        assert torch.equal(saved.actions, data.train.actions.abs().amax(0))
    other = tmp_path / "other"
    other.mkdir()
    fit(
        load(tmp_path / "run"),
        spec_of(other, make_episodes(numbers=numbers, seed=1)),
        steps=1,
        batch=4,
        out=tmp_path / "next",
    )
    assert torch.equal(load(tmp_path / "next").measured.mean, saved.mean)  # by which its weights were learned
    levels = data.levels(model, "train", 1, 1 << 30)
    wanted_level = data.train.actions / (saved.actions if numbers else 1)
    plain = float((wanted_level - wanted_level.mean(0)).square().mean()) if numbers else None
    assert plain is None or numpy.isclose(levels["always the mean"], plain, rtol=1e-4)


def test_what_differs_by_rounding_alone_is_not_divided_by_its_deviation(tmp_path: Path) -> None:
    originals = make_episodes()
    for episode in originals:
        episode.states[:, 0], episode.states[:, 2] = 0.1, episode.states[:, 2] * 1e-9
        episode.states[::2, 1] = 1000.0
        episode.states[1::2, 1] = numpy.nextafter(numpy.float32(1000), numpy.float32(2000))
    data = read_spec(spec_of(tmp_path, originals))
    assert isinstance(data, EpisodeData)
    assert data.scales.deviation[:2].tolist() == [1, 1]
    torch.testing.assert_close(data.scales.deviation[2], data.train.states[:, 2].std(correction=0))


def test_a_kind_of_action_that_no_episode_shows_can_be_trained_for_and_played(tmp_path: Path) -> None:
    """A t-maze takes three kinds of actions, and whoever wrote these episodes never took the last."""
    originals = [episode._replace(states=numpy.tile(episode.states[:, :1], 4)) for episode in make_episodes()]
    spec = spec_of(tmp_path, originals)
    data = read_spec(spec)
    assert isinstance(data, EpisodeData) and data.actions == 2
    few, with_three_actions = (decision_transformer(**{**TINY, "states": 4, "actions": n}) for n in (2, 3))
    fit(with_three_actions, spec, steps=1, batch=4)
    plan = PlaySettings("t_maze,corridor=2", 2)
    assert {episode.number for episode in roll_out(with_three_actions, plan)} == {0, 1}
    fit(few, spec, steps=1, batch=4)
    with pytest.raises(ValueError, match="takes 3 discrete actions, but this .* has 2 .*; train it with actions=3"):
        list(roll_out(few, plan))
    with pytest.raises(
        ValueError, match="has actions=2, but this decision_transformer was made for 1; train a model with actions=2"
    ):
        fit(decision_transformer(**{**TINY, "states": 4, "actions": 1}), spec, steps=1)


def test_episodes_that_cannot_be_written_leave_those_that_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec_of(tmp_path, make_episodes(3))
    before = (tmp_path / "a.npz").read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left.*unchanged"):
        patched.setattr("kinformer.checkpoint.atomic_files.os.fsync", full)
        write_episodes(tmp_path / "a.npz", make_episodes(5))
    assert (tmp_path / "a.npz").read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_minari_s_files_and_folders_of_several_are_the_same_episodes(tmp_path: Path) -> None:
    originals = make_episodes(numbers=True)
    (tmp_path / "set" / "data").mkdir(parents=True)
    with h5py.File(tmp_path / "set" / "data" / "main_data.hdf5", "w") as file:
        for n, episode in enumerate(originals):
            group = file.create_group(f"episode_{n}")
            group["observations"] = numpy.concatenate([episode.states, episode.states[-1:]])
            group["actions"], group["rewards"] = episode.actions, episode.rewards
            group["terminations"] = numpy.arange(len(episode.rewards)) == len(episode.rewards) - 1
    (tmp_path / "some").mkdir()
    write_episodes(tmp_path / "some" / "1.npz", originals[:7])
    write_episodes(tmp_path / "some" / "2.npz", originals[7:])
    for where in (tmp_path / "set", tmp_path / "set" / "data" / "main_data.hdf5", tmp_path / "some"):
        reread = episodes(where)
        assert all(map(numpy.array_equal, episode, other) for episode, other in zip(reread, originals, strict=True))
    with h5py.File(tmp_path / "set" / "data" / "main_data.hdf5", "a") as file:
        del file["episode_3"]["observations"]
        file["episode_3"].create_group("observations")["place"] = numpy.zeros(3)
    with pytest.raises(ValueError, match=r"episode_3 of .* is not flat: expected plain arrays"):
        episodes(tmp_path / "set")
    (tmp_path / "set" / "data" / "main_data.hdf5").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"is not a file of Minari, or is damaged"):
        episodes(tmp_path / "set")


def test_wrong_episodes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no "):
        read(str(tmp_path / "none.npz"))
    with pytest.raises(ValueError, match="has no episodes: expected .npz files, or data/main_data.hdf5 of Minari"):
        read(str(tmp_path))
    (tmp_path / "x.npz").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is not a .npz of arrays, or is damaged"):
        read(str(tmp_path / "x.npz"))
    good = {"obs": numpy.zeros((4, 2)), "actions": numpy.zeros(4, int), "rewards": numpy.zeros(4)}
    starts = numpy.array([True, False, True, False])
    infinite = numpy.zeros((4, 2))
    infinite[3] = numpy.nan
    for changes, message in (
        ({}, "expected episode_starts too"),
        ({"episode_starts": starts[:3]}, "arrays of different lengths"),
        ({"episode_starts": ~starts}, r"expected booleans \[N\], True at the first step"),
        ({"episode_starts": starts, "obs": infinite}, "episode 1 of .* has observations that are not finite at step 1"),
        ({"episode_starts": starts, "obs": numpy.array(list("abcd"))}, "expected numbers for each step"),
        ({"episode_starts": starts, "actions": numpy.full(4, -1)}, "one integer from 0 on"),
        ({"episode_starts": starts}, "has too few episodes: got 1 different ones, expected at least 2"),
        ({"episode_starts": starts, "rewards": numpy.full(4, 3e38)}, "with a sum that is too large for float32"),
        ({name: numpy.zeros((0, 2)) for name in (*good, "episode_starts")}, "has no steps"),
        ({"episode_starts": starts, "reward": 1}, None),
    ):
        numpy.savez(tmp_path / "x.npz", **{**good, **changes})
        if message is not None:
            with pytest.raises(ValueError, match=message):
                read(str(tmp_path / "x.npz"))
    with pytest.raises(ValueError, match="reward='none' is not known"):
        read(str(tmp_path / "x.npz"), reward="none")
    write_episodes(tmp_path / "x.npz", make_episodes(3))
    write_episodes(tmp_path / "y.npz", make_episodes(3, numbers=True))
    with pytest.raises(ValueError, match="episodes of different environments"):
        read(str(tmp_path))
    spec = f"offline={tmp_path}/x.npz"
    with pytest.raises(
        ValueError, match="has states=3, but this decision_transformer was made for 4; train a model with states=3"
    ):
        fit(decision_transformer(d=8, depth=1), spec, steps=1)
    with pytest.raises(
        ValueError, match=r"steps=\d+, but this decision_transformer was made for 1; train a model with steps="
    ):
        fit(decision_transformer(**{**TINY, "steps": 1}), spec, steps=1)
