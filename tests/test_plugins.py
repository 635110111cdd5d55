"""A package of somebody else, built, installed beside the library, and found by its entry points alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KINDS = {
    "pattern": "patterns",
    "bias": "biases",
    "mechanism": "mechanisms",
    "memory": "memories",
    "block": "blocks",
    "depth": "depth",
    "member": "members",
}
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "plugged"
version = "1.0"

[tool.hatch.build.targets.wheel]
packages = ["plugged"]
"""
RUN = """
import contextlib, io, json, sys
from kinformer.cli.__main__ import run
from kinformer.discover import find_member, modules
found = {}
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    found[words[0] + " " + words[1]] = code, out.getvalue(), err.getvalue()
assert find_member("sinks").origin.file is None
found["home"] = modules("members")["sinks"].__file__
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which a package of all toys is installed from its wheel; nothing is fetched."""
    home, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    (home / "plugged").mkdir()
    (home / "plugged" / "__init__.py").touch()
    points = []
    for toy, kind in KINDS.items():
        (home / "plugged" / f"{toy}.py").write_text((ROOT / "tests" / "toys" / f"{toy}.py").read_text(encoding="utf-8"))
        name = "sinks" if toy == "member" else f"toy_{toy}"
        points += [f'[project.entry-points."kinformer.{kind}"]', f'{name} = "plugged.{toy}"']
    (home / "pyproject.toml").write_text(PROJECT + "\n".join(points) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    quiet = ["--no-index", "--no-deps"]
    _do([*pip, "wheel", *quiet, "--no-build-isolation", "-w", str(home / "dist"), str(home)], home)
    (wheel,) = (home / "dist").glob("*.whl")
    _do([*pip, "install", *quiet, "--target", str(target), str(wheel)], home)
    return target


def _do(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def said(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Exit code, stdout and stderr of every command, in a process that has the package on its path."""
    out = tmp_path_factory.mktemp("out")
    (out / "text").write_bytes(b"the cat sat on the mat. " * 200)
    data, small = ["--data", f"text={out}/text", "--batch", "2", "--length", "8"], "sinks(d=16, depth=1, heads=2)"
    commands = [
        ["list", "patterns"],
        ["list", "members"],
        ["list", "memories"],
        ["show", "Alternate"],
        ["show", "sinks"],
        ["train", "sinks", "d=16", "depth=1", "heads=2", "--steps", "2", "--out", str(out / "train"), *data],
        ["generate", str(out / "train"), "--prompt", "the ", "--tokens", "4"],
        ["compare", small, "gpt(d=16, depth=1, heads=2)", "--minutes", "0.003", "--out", str(out / "all"), *data],
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{target}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(commands), env=env, cwd=out, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    found["generate"] = found.pop(f"generate {out / 'train'}")
    found["compare"] = found.pop(f"compare {small}")
    return found


def test_it_is_installed_beside_the_library(said: dict, target: Path) -> None:
    assert Path(said["home"]).parent == target / "plugged"


def test_list_and_show_have_it(said: dict) -> None:
    assert ["patterns", "toy_pattern", "Alternate:"] in [
        row.split()[:3] for row in said["list patterns"][1].splitlines()
    ]
    assert ["members", "sinks", "Sinks:"] in [row.split()[:3] for row in said["list members"][1].splitlines()]
    assert ["memories", "toy_memory", "Recent:"] in [row.split()[:3] for row in said["list memories"][1].splitlines()]
    assert "patterns/toy_pattern" in said["show Alternate"][1] and "█·█·█" in said["show Alternate"][1]
    assert "members/sinks" in said["show sinks"][1] and "window: int = 64" in said["show sinks"][1]


def test_it_trains_writes_and_is_compared(said: dict) -> None:
    for name in ("train sinks", "generate", "compare"):
        assert said[name][0] == 0, said[name]
    assert "sinks(d=16, depth=1, heads=2): " in said["train sinks"][1] and "bits per byte" in said["train sinks"][1]
    assert said["generate"][1].startswith("the ")
    assert all(f"{name}(d=16, depth=1, heads=2)" in said["compare"][1] for name in ("sinks", "gpt"))
