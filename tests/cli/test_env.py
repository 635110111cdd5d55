"""Environments on the command line: a member acts, is judged and plays; each wrong word is one line and code 2."""

import json
from pathlib import Path

import pytest

from kinformer.cli.__main__ import run

SMALL = ["lstm", "d=8", "depth=1"]
SHORT = ["--steps", "2", "--batch", "2", "--length", "8"]
WRONG = {
    "an ID": ([*SMALL, "--data", "env=CartPol-v1"], "the nearest is 'CartPole-v1'"),
    "one of ours": ([*SMALL, "--data", "env=t_maz"], "the nearest is 't_maze'"),
    "its keyword": ([*SMALL, "--data", "env=t_maze,coridor=3"], "no keyword 'coridor'; the nearest is 'corridor'"),
    "its value": ([*SMALL, "--data", "env=t_maze,corridor=0"], "corridor=0: give a whole number of at least 1"),
    "a keyword": ([*SMALL, "dd=8", "--data", "env=t_maze"], "the member 'lstm' has no keyword 'dd'"),
    "an agent's": ([*SMALL, "entropy=-1", "--data", "env=t_maze"], "entropy=-1"),
    "an encoder": (["bert", "--data", "env=t_maze"], "makes the model MLM; give a plain language model"),
    "a text": (
        ["agent", "--data", "text=stdlib"],
        "kinformer: agent reads an environment, but got a text; give env=ID",
    ),
    "a length": (["gpt", "d=8", "depth=1", "heads=2", "length=4", "--data", "env=t_maze"], "give a larger length"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_words_are_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, why = WRONG[name]
    assert run(["train", *words, *SHORT, "--out", str(tmp_path / "run")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert why in lines[-1] and len(lines) == 1
    assert not (tmp_path / "run").exists()


def test_a_member_acts_and_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    env = "env=t_maze,corridor=1"
    assert run(["train", *SMALL, "entropy=0.02", "--data", env, *SHORT, "--out", out]) == 0
    keywords = json.loads((tmp_path / "run" / "config.json").read_text())["keywords"]
    assert keywords["entropy"] == 0.02 and keywords["stack"].startswith("lstm(d=8, depth=1")
    assert keywords["observations"] == [4] and keywords["actions"] == 3
    output = capsys.readouterr().out
    assert "return, success" in output and output.strip().endswith(" steps/s")
    assert run(["evaluate", out, "--data", env, "--split", "valid", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metric"]["name"] == "return" and report["count"] == 32 and 0 <= report["others"]["success"] <= 1
    assert run(["evaluate", out, "--data", "env=CartPole-v1"]) == 2
    assert "give a model that was made for this environment" in capsys.readouterr().err
    assert run(["play", out, "--env", "t_maze,corridor=1", "--episodes", "2"]) == 0
    assert "success" in capsys.readouterr().out
