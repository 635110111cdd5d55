"""`kinformer play`."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image
from PIL import Image

from kinformer.cli.__main__ import run
from kinformer.lab.data.offline import EpisodeData
from kinformer.lab.data.spec import read_spec
from tests.cli.folders import folder
from tests.cli.test_commands import fails
from tests.lab.data.test_play_episodes import COUNTING

SIZES: dict[str, Any] = {"context": 3, "steps": 500, "states": 3, "actions": 2, "discrete": True}


def test_returns_are_told_kept_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder, out, save = (
        folder(tmp_path / "run", "decision_transformer", **SIZES),
        tmp_path / "o",
        tmp_path / "s.npz",
    )
    returns = [word for entry in ("1", "2", "3") for word in ("--return", entry)]
    assert (
        run(
            ["play", run_folder, "--env", COUNTING, *returns, "--episodes", "5", "--out", str(out), "--save", str(save)]
        )
        == 0
    )
    captured = capsys.readouterr()
    assert "target return 2: mean return" in captured.out and "in 5 episodes of 3.2 steps" in captured.out
    assert "renders no pictures" in captured.err and not (out / "play.gif").exists()
    played = json.loads((out / "returns.json").read_text())["played"]
    assert [entry["asked"] for entry in played] == [1, 2, 3] and all(len(entry["returns"]) == 5 for entry in played)
    assert image.imread(out / "returns.png")[..., :3].std() > 0
    data = read_spec(f"offline={save}")  # the same episode twice is one
    assert isinstance(data, EpisodeData) and data.states == 3 and len(data.train.episode_returns) >= 2


def test_an_episode_is_drawn_as_an_animation_and_steps_are_told_before_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinformer.cli.support.progress_bar.EVERY", 0.0)
    out = tmp_path / "o"
    assert run(["play", "--env", "key_to_door,size=3,steps=4", "--episodes", "1", "--out", str(out)]) == 0
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "playing: 0 of 1 episodes, 1 steps, ? left" and last == f"drawing {out / 'play.gif'}"
    with Image.open(out / "play.gif") as animation:
        assert getattr(animation, "n_frames", 1) > 3


def test_a_full_disk_is_one_line_and_leaves_no_half_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kinformer.checkpoint.atomic_files.os.fsync", full)
    assert run(["play", "--env", COUNTING, "--episodes", "2", "--out", str(tmp_path / "o")]) == 1
    captured = capsys.readouterr()
    last = captured.err.strip().splitlines()[-1]
    assert "returns.json" in last and "No space left on device" in last and "mean return" in captured.out
    assert not list((tmp_path / "o").iterdir())


@pytest.mark.parametrize("failure", ["raise", "reward", "observation"])
def test_of_an_environment_that_fails_the_ended_episodes_are_told_and_kept(
    failure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder, save = folder(tmp_path / "run", "behaviour_cloning", **SIZES), tmp_path / "s.npz"
    words = [
        "play",
        run_folder,
        "--env",
        f"{COUNTING},failure={failure},fails=4",
        "--episodes",
        "8",
        "--save",
        str(save),
    ]
    assert run(words) == 1
    captured = capsys.readouterr()
    last = captured.err.strip().splitlines()[-1]
    assert last.startswith("kinformer: ") and "of 8 episodes had ended and are summarised" in last and "at step" in last
    assert "Traceback" not in captured.err and "mean return" in captured.out
    ended = read_spec(f"offline={save}")
    assert isinstance(ended, EpisodeData)


def test_what_cannot_be_played_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder, other = folder(tmp_path / "run", "behaviour_cloning", **SIZES), folder(tmp_path / "gpt", "gpt")
    fails(
        capsys,
        ["play", other, "--env", "CartPole-v1"],
        "reads text data and cannot act; use a model of a member such as decision_transformer",
    )
    fails(
        capsys,
        ["play", run_folder, "--env", "CartPole-v1"],
        "has 4 numbers in an observation, but this behaviour_cloning reads 3",
    )
    fails(capsys, ["play", run_folder, "--env", "CartPol-v1"], "the nearest is 'CartPole-v1'")
    fails(
        capsys,
        ["play", run_folder, "--env", COUNTING, "--return", "3"],
        "target_return has no effect: this model was trained without returns",
    )
    fails(capsys, ["play", "--env", COUNTING, "--return", "3"], "--return has no effect when all actions")
    fails(capsys, ["play", run_folder, "--env", COUNTING, "--save", str(tmp_path / "a.txt")], "give FILE.npz")
    missing = str(tmp_path / "no" / "a.npz")  # refused before an episode is played
    fails(capsys, ["play", run_folder, "--env", COUNTING, "--save", missing], "--save must name a file in an existing")
    fails(capsys, ["play", run_folder, "--env", COUNTING, "--out", run_folder], "already exists")
    fails(capsys, ["play", run_folder, "--env", COUNTING, "--out", f"{run_folder}/config.json/o"], "Not a directory", 1)
