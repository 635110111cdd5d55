"""A refusal of --resume names what to type: typed so, the refused command goes on."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from kinformer.cli.__main__ import COMMANDS, run
from kinformer.cli.support.typed_options import OPTIONS, as_typed
from kinformer.core.training_recipe import Recipe
from kinformer.lab.train.settings import Settings

FROM_PYTHON = {"decay", "measures", "valid_bytes", "plan"}  # settings without an option


def words(folder: Path) -> dict[str, str]:
    """A training as the values of its options."""
    return {
        "--data": f"text={folder}/a text",
        "--steps": "2",
        "--batch": "4",
        "--length": "8",
        "--lr": "0.003",
        "--seed": "1",
        "--accumulate": "2",
        "--precision": "float32",
        "--clip": "0.5",
        "--eps": "1e-9",
        "--schedule": "linear",
    }


def line(command: list[str], options: dict[str, str]) -> list[str]:
    return [*command, *(word for option in options.items() for word in option)]


OTHER = {
    "--batch": "6",
    "--length": "4",
    "--lr": "0.002",
    "--seed": "2",
    "--accumulate": "1",
    "--precision": "bf16",
    "--clip": "1",
    "--eps": "1e-8",
    "--schedule": "cosine",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    for name in ("a text", "other"):
        (folder / name).write_bytes(f"{name}: the cat sat on the mat. ".encode() * 200)
    assert run(line(["train", *MEMBER, "--out", f"{folder}/run"], words(folder))) == 0
    return folder


MEMBER = ["longformer_lm", "d=16", "depth=2", "heads=2", "top=none", "window=2,4"]


def refused(capsys: pytest.CaptureFixture[str], command: list[str]) -> list[str]:
    """The words that the refusal of a command says to pass."""
    capsys.readouterr()
    assert run(command) == 2
    match = re.search(r"\. Pass (.*), or start another run", capsys.readouterr().err)
    assert match is not None
    return shlex.split(match[1])


@pytest.mark.parametrize("option", [*OTHER, "--data"])
def test_the_option_that_a_refusal_says_to_pass_is_the_one_of_the_run(
    option: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual, out = words(trained), ["--out", f"{trained}/run", "--resume"]
    other = OTHER.get(option, f"text={trained}/other")
    name, value = refused(capsys, line(["train", *MEMBER, *out], usual | {option: other}))
    assert name == option
    assert run(line(["train", *MEMBER, *out], usual | {option: value})) == 0


def test_the_member_and_its_keywords_are_named_by_their_places(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", f"{trained}/run", "--resume"]
    other = line(["train", "gpt", *MEMBER[1:4], *out], words(trained))
    assert refused(capsys, other) == ["train", "longformer_lm"]
    (keyword,) = refused(capsys, line(["train", *MEMBER[:5], "window=4,4", *out], words(trained)))
    assert keyword == "window=(2, 4)" and run(line(["train", *MEMBER[:5], keyword, *out], words(trained))) == 0


def test_a_comparison_names_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200)
    member = ["compare", "gpt(d=16,depth=1,heads=2,length=8)", "--out", f"{tmp_path}/all"]
    usual = {"--data": f"text={tmp_path}/text", "--steps": "1", "--batch": "2", "--length": "8"}
    assert run(line(member, usual)) == 0
    for options, message in (
        ({"--batch": "3"}, "got --batch 3, expected --batch 2. Pass --batch 2, or choose another --out"),
        ({"--lr": "0.1"}, "got --lr 0.1, expected no --lr. Leave out --lr, or choose"),
        ({"--seeds": "2"}, "got --seeds 2, expected --seeds 1. Pass --seeds 1, or choose"),
        ({"--steps": "2"}, "got --steps 2, expected --steps 1. Pass --steps 1, or choose"),
    ):
        capsys.readouterr()
        assert run([*line(member, usual | options), "--resume"]) == 2
        assert message in capsys.readouterr().err


def test_every_setting_is_an_option_or_says_that_it_is_set_from_python() -> None:
    names = {field.name for kind in (Settings, Recipe) for field in fields(kind)}
    options = {
        option
        for command in ("train", "compare")
        for parameter in COMMANDS.commands[command].params
        for option in parameter.opts
    }
    assert {f"--{name}" for name in OPTIONS} <= options
    assert names - set(OPTIONS) == FROM_PYTHON
    assert as_typed("settings", "decay", 0.3) == "fit(..., decay=0.3)"
    assert as_typed("settings", "betas", [0.9, 0.98]) == "--betas 0.9,0.98"
    assert as_typed("settings", "warmup", 4000) == "--warmup 4000"
    assert as_typed("settings", "compile", False) == "no --compile"
