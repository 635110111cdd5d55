"""A package of somebody else, built, installed beside the library, and found by its entry points alone."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# the folder, or group of plugins, of each toy; nobody but its plugins has filters
KINDS = {
    "pattern": "patterns",
    "bias": "biases",
    "mechanism": "mechanisms",
    "score": "scores",
    "shortener": "shorteners",
    "mixer": "filters",
    "memory": "memories",
    "projection": "projections",
    "rotation": "positions",
    "aggregation": "aggregations",
    "join": "blocks",
    "feedforward": "feedforward",
    "depth": "depth",
    "loss": "losses",
    "model": "models",
    "law": "laws",
    "executor": "executors",
    "task": "tasks",
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
from kinformer.core.discover import find_member, modules
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
# what a kind is asked first; what all laws say of the same toys is in tests/cli/test_check.py, and here in the long run
FIRST = ("runs", "impl", "pattern", "answers", "toy_law")
JUDGE = """
import json, sys
import torch
from kinformer import attend, fit
from kinformer.core.discover import kinds, modules
from kinformer.laws.support.verdicts import laws, verdict
from tests.discovered import discovered
found = {"kinds": kinds(), "verdicts": [], "executors": []}
every, first = json.load(sys.stdin)
for kind in every:
    for one in discovered(kind):
        if one.name.split(".")[1].startswith(("toy_", "sinks")):
            for name, law in laws().items():
                said = verdict(name, law, one) if name in (first or laws().keys() - {"compiles", "learns"}) else None
                if said is not None:
                    found["verdicts"].append((kind, said.law, said.end, said.text))
x = torch.randn(1, 2, 5, 8)
same = torch.allclose(attend(x, x, x, impl="toy_executor").y, attend(x, x, x, impl="reference").y, atol=1e-6)
found["executor reads the same"] = same
torch.manual_seed(0)
model = modules("models")["toy_model"].EXAMPLES[0]()
def batch(seed):
    tokens = torch.randint(2, (32, 1), generator=torch.Generator().manual_seed(seed)).expand(-1, 6)
    return tokens, tokens[:, 0]
def accuracy():
    (right, count), = model.judge(batch(1000)).totals.values()
    return float(right / count)
before = accuracy()
fit(model, [batch(seed) for seed in range(50)], steps=50, lr=3e-3)
found["classifier"] = before, accuracy()
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
    # what `pip wheel` asks the build backend, and what `pip install` does with a wheel of Python files
    build = [sys.executable, "-c", "from hatchling.build import build_wheel; build_wheel('dist')"]
    done = subprocess.run(build, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (home / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def _python(code: str, request: object, target: Path, folder: Path) -> dict:
    """What a program prints that has the package on its path."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{target}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(request), env=env, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def judged(target: Path, tmp_path_factory: pytest.TempPathFactory, prove: bool) -> dict:
    """What laws say of every toy, found as a plugin."""
    command = sorted(set(KINDS.values()) - {"laws"}), () if prove else FIRST
    return _python(JUDGE, command, target, tmp_path_factory.mktemp("judged"))


@pytest.fixture(scope="module")
def outputs(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
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
        [
            "train",
            "gpt",
            "d=16",
            "depth=1",
            "heads=2",
            "--steps",
            "2",
            "--out",
            str(out / "task"),
            "--data",
            "task=toy_task",
        ],
        ["generate", str(out / "train"), "--prompt", "the ", "--tokens", "4"],
        ["compare", small, "gpt(d=16, depth=1, heads=2)", "--minutes", "0.003", "--out", str(out / "all"), *data],
    ]
    outputs_by_command = _python(RUN, commands, target, out)
    outputs_by_command["generate"] = outputs_by_command.pop(f"generate {out / 'train'}")
    outputs_by_command["compare"] = outputs_by_command.pop(f"compare {small}")
    return outputs_by_command


def test_it_is_installed_beside_the_library(outputs: dict, target: Path) -> None:
    assert Path(outputs["home"]).parent == target / "plugged"


def test_list_and_show_have_it(outputs: dict) -> None:
    assert ["patterns", "toy_pattern", "Alternate:"] in [
        row.split()[:3] for row in outputs["list patterns"][1].splitlines()
    ]
    assert ["members", "sinks", "Sinks:"] in [row.split()[:3] for row in outputs["list members"][1].splitlines()]
    assert ["memories", "toy_memory", "Recent:"] in [
        row.split()[:3] for row in outputs["list memories"][1].splitlines()
    ]
    assert "patterns/toy_pattern" in outputs["show Alternate"][1] and "██ ·██ ·" in outputs["show Alternate"][1]
    assert "members/sinks" in outputs["show sinks"][1] and "window: int = 64" in outputs["show sinks"][1]


def test_it_trains_writes_and_is_compared(outputs: dict) -> None:
    for name in ("train sinks", "train gpt", "generate", "compare"):
        assert outputs[name][0] == 0, outputs[name]
    assert (
        "sinks(d=16, depth=1, heads=2): " in outputs["train sinks"][1] and "bits per byte" in outputs["train sinks"][1]
    )
    assert outputs["generate"][1].startswith("the ")
    assert all(f"{name}(d=16, depth=1, heads=2)" in outputs["compare"][1] for name in ("sinks", "gpt"))


def test_a_new_kind_is_a_group_of_plugins_and_no_edit(judged: dict) -> None:
    assert "filters" in judged["kinds"] and not {"laws", "executors"} & set(judged["kinds"])


@pytest.mark.parametrize("kind", sorted(set(KINDS.values()) - {"laws"}))
def test_every_kind_is_judged_by_the_laws(judged: dict, kind: str) -> None:
    verdicts = [(law, end, text) for kind_judged, law, end, text in judged["verdicts"] if kind_judged == kind]
    assert verdicts and any(end == "holds" for _, end, _ in verdicts)
    assert all(end in ("holds", "nothing") for _, end, _ in verdicts), verdicts


def test_a_law_of_a_plugin_judges_all_patterns(judged: dict) -> None:
    assert ["patterns", "toy_law", "broken"] not in [verdict[:3] for verdict in judged["verdicts"]]
    assert [verdict[1] for verdict in judged["verdicts"] if verdict[0] == "patterns"].count("toy_law") == 1


def test_an_executor_of_a_plugin_serves_attend(judged: dict) -> None:
    assert judged["executor reads the same"]


def test_a_model_with_one_answer_per_row_is_trained(judged: dict) -> None:
    before, after = judged["classifier"]
    assert before < 0.9 < after
