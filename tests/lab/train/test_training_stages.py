"""Staged training: what a phase takes from the one before, at which rate it learns, and where it goes on again."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.core.training_recipe import Recipe
from kinformer.lab.train.budget import MinuteBudget, StepBudget
from kinformer.lab.train.history import History
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.lab.train.training_stages import carry_weights, doubled_keywords, phase_recipe
from kinformer.members.gpt import gpt
from kinformer.members.longformer_lm import longformer_lm
from kinformer.nn.mechanisms.softmax import Softmax
from tests.lab.train.tiny import text

SMALL = {"d": 16, "depth": 1, "heads": 2}


def command(folder: Path, *args: str) -> list[str]:
    (folder / "text").write_bytes(b"the cat sat on the mat. " * 200)
    words = ["train", "gpt", "d=16", "depth=1", "heads=2", "length=8", "--data", f"text={folder}/text"]
    return [*words, "--out", f"{folder}/run", "--steps", "40", "--batch", "2", "--length", "8", "--lr", "0.01", *args]


def test_a_phase_has_its_window_and_table_doubled_and_a_constant_rate_after_a_warm_up() -> None:
    assert doubled_keywords(longformer_lm, {"d": 8, "window": 32, "top": 512}, 64) == {"d": 8, "window": 64, "top": 512}
    assert doubled_keywords(longformer_lm, {"window": (2, 3), "top": None}, 64)["window"] == (4, 6)
    assert doubled_keywords(gpt, {"length": 8}, 16) == {"length": 16} and doubled_keywords(gpt, {"length": 64}, 16) == {
        "length": 64
    }
    assert phase_recipe(1e-3, StepBudget(50)) == phase_recipe(1e-3, MinuteBudget(3)) == Recipe(1e-3, 0.1, "constant")
    assert phase_recipe(1e-3, StepBudget(400_000)).warmup == 10_000 / 400_000


def windows(keywords: dict[str, Any], length: int) -> list[int]:
    """How many keys the last query of a long row reads in each layer, counted."""
    patterns = [part.pattern for part in longformer_lm(**keywords).modules() if isinstance(part, Softmax)]
    return [int(pattern(0, 3, length - 1, torch.arange(length)).sum()) for pattern in patterns]


@pytest.mark.parametrize(
    ("keywords", "bottoms", "top"),
    [
        ({}, [16, 32, 64, 128, 128], 128),
        ({"window": 32, "top": 8192, "depth": 12}, [32, 64, 128, 256, 512], 8192),  # the paper's
        ({"window": 8, "top": None}, [8, 16, 32, 64, 128], None),
    ],
)
def test_windows_of_later_phases_double_and_never_decrease_upwards(
    keywords: dict[str, Any], bottoms: list[int], top: int | None
) -> None:
    smallest = []
    for _ in bottoms:
        sizes = windows({"d": 4, **keywords}, 8200 if top == 8192 else 200)
        assert sizes == sorted(sizes) and sizes[-1] == (top or sizes[0])
        smallest.append(sizes[0])
        keywords = doubled_keywords(longformer_lm, keywords, 64)
    assert smallest == bottoms


def test_a_phase_that_names_a_window_or_a_top_has_them() -> None:
    before = {"window": 64, "top": 128}
    assert doubled_keywords(longformer_lm, before, 64, {"top": 96}) == {"window": 96, "top": 96}
    assert doubled_keywords(longformer_lm, before, 64, {"window": 80}) == {"window": 80, "top": 128}
    with pytest.raises(ValueError, match="shrink from window=256 in the lowest layer to top=128"):
        doubled_keywords(longformer_lm, before, 64, {"window": 256})


def test_a_schedule_that_is_given_is_that_of_every_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = ["--schedule", "linear", "--warmup", "2", "--betas", "0.8,0.9"]
    assert run(command(tmp_path, *schedule, "--then", "steps=4")) == 0
    for folder, peak in (("run/phase-1", 0.01), ("run", 0.005)):
        lines = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        rates = [line["lr"] / peak for line in lines if "lr" in line]
        assert rates[:3] == pytest.approx([0.01, 0.5, 1.0]) and rates[-1] == pytest.approx(1 / (len(rates) - 2))
    plan = json.loads((tmp_path / "run" / "phases.json").read_text())
    schedule = {"schedule": "linear", "warmup": 2, "betas": [0.8, 0.9]}
    assert all(schedule.items() <= phase["settings"].items() for phase in plan)
    capsys.readouterr()
    assert run(command(tmp_path, "--schedule", "noam", "--then", "steps=4", "--overwrite")) == 2
    assert "cannot combine --schedule noam with --then" in capsys.readouterr().err


def test_a_longer_table_is_the_trained_rows_over_and_over_and_all_else_is_as_it_was() -> None:
    short, long = gpt(**SMALL, length=8), gpt(**SMALL, length=20)
    short.trained_length = 6
    carry_weights(short, long)
    old, new = (model.state_dict()["position.table.weight"] for model in (short, long))
    assert torch.equal(new[:6], old[:6]) and torch.equal(new[6:12], old[:6]) and torch.equal(new[18:], old[:2])
    rows = torch.randint(0, 256, (2, 6))
    assert torch.equal(short.eval().logits(rows).y, long.eval().logits(rows).y)


def test_other_weights_are_refused_in_a_line_and_nothing_is_changed() -> None:
    wide = gpt(d=32, depth=1, heads=2)
    before = {name: tensor.clone() for name, tensor in wide.state_dict().items()}
    for other in (gpt(**SMALL), gpt(d=32, depth=2, heads=2)):
        with pytest.raises(ValueError, match="Only windows and the length of learned positions may differ") as error:
            carry_weights(other, wide)
        assert "\n" not in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in wide.state_dict().items())


def test_the_loss_goes_on_from_where_it_was() -> None:
    """By windows alone it would be that of knowing nothing: 8 bits."""
    narrow = longformer_lm(**SMALL, window=2)
    trained = train(narrow, text(), StepBudget(150), Settings(batch=4, length=16, lr=1e-2))
    wide = longformer_lm(**SMALL, window=4)
    carry_weights(narrow, wide)
    first = train(
        wide, text(), StepBudget(1), Settings(batch=4, length=32, plan=phase_recipe(5e-3, StepBudget(10)))
    ).points[0]
    anew = train(longformer_lm(**SMALL, window=4), text(), StepBudget(1), Settings(batch=4, length=32)).points[0]
    assert trained.best.valid < 0.3 and first.train < 0.6 and anew.train > 7


def test_phases_are_trained_in_turn_and_gone_on_with_where_they_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    then = ("--then", "steps=10", "--then", "steps=6,length=20,lr=0.001")
    out = tmp_path / "run"
    assert run(command(tmp_path, *then)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and "length=16) (phase 2 of 3): " in lines[1] and "length=20) (phase 3 of 3): " in lines[2]
    models = [load(folder) for folder in (out / "phase-1", out / "phase-2", out)]
    assert [model.member.keywords["length"] for model in models] == [8, 16, 20]
    assert [model.trained_length for model in models] == [8, 16, 20]
    before, after = (History.read(folder).points[-1].valid for folder in (out / "phase-1", out / "phase-2"))
    assert before < 5 and after < before + 0.5
    phases = json.loads((out / "phases.json").read_text())
    assert [phase["settings"]["plan"]["lr"] for phase in phases] == [0.01, 0.005, 0.001]
    assert [phase["budget"] for phase in phases[1:]] == ["Steps(count=10)", "Steps(count=6)"], "as runs before have it"
    assert {phase["data"] for phase in phases} == {f"text={tmp_path}/text"}

    shutil.rmtree(out / "trainer")  # as if it had been killed before it first saved in its last phase
    begun = (out / "phase-2" / "model.safetensors").stat().st_mtime_ns
    assert run(command(tmp_path, *then, "--resume")) == 0
    assert capsys.readouterr().out.count("(phase ") == 1
    assert (out / "phase-2" / "model.safetensors").stat().st_mtime_ns == begun
    final = load(out).state_dict()
    assert all(torch.equal(tensor, final[name]) for name, tensor in models[2].state_dict().items())
    assert run(command(tmp_path, *then, "--resume")) == 0 and "(phase " not in capsys.readouterr().out
    for options, wrong in (
        (then, "run holds a model of 'gpt' that was trained before, which would be overwritten"),
        ((*then, "--resume", "--then", "steps=1"), "run: got 4 phases, expected 3. Pass the same --then options"),
    ):
        assert run(command(tmp_path, *options)) == 2 and wrong in capsys.readouterr().err
    for options, wrong in (
        (
            ("--then", "steps=10", "--then", "steps=6,length=20,lr=0.002"),
            "phase 3 in .*: got lr=0.002, expected lr=0.001. Pass lr=0.001 in its --then",
        ),
        (
            ("--then", "steps=11", "--then", "steps=6,length=20,lr=0.001"),
            "phase 2 in .*: got steps=11, expected steps=10. Pass steps=10 in its --then",
        ),
    ):
        assert run(command(tmp_path, *options, "--resume")) == 2 and re.search(wrong, capsys.readouterr().err)
    sentences = [f"{line.partition(' (phase ')[0]} on text=x, Steps(count=1), Settings()" for line in lines[:3]]
    (out / "phases.json").write_text(json.dumps(sentences))  # as an earlier version wrote it
    assert run(command(tmp_path, *then, "--resume")) == 0
    other = [*command(tmp_path, *then, "--resume")[:-2], "steps=6,length=24"]
    assert run([*other, "--resume"]) == 2 and "phase 3 in " in capsys.readouterr().err
    (out / "phases.json").write_text(json.dumps(phases))
    shutil.copy(tmp_path / "text", tmp_path / "same")
    words = [word.replace(f"text={tmp_path}/text", f"text={tmp_path}/same") for word in command(tmp_path, *then)]
    assert run([*words, "--resume"]) == 0
    (tmp_path / "same").write_bytes(b"the dog sat on the mat. " * 200)
    assert run([*words, "--resume"]) == 2 and f"expected --data text={tmp_path}/text." in capsys.readouterr().err
    phases = (out / "phases.json").read_bytes()
    for spoiled in (b"5", b"{}", b"["):
        (out / "phases.json").write_bytes(spoiled)
        assert run(command(tmp_path, *then, "--resume")) == 2
        assert "phases.json does not list the phases. Start again with --overwrite" in capsys.readouterr().err
    (out / "phases.json").write_bytes(phases)
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert run(command(tmp_path, *then, "--overwrite", "--from", str(tmp_path / "none"))) == 2
    assert capsys.readouterr().err == f"kinformer: there is no file or folder {tmp_path / 'none'}\n"
    assert files == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    anew = (*then, "--overwrite", "--from", str(out / "phase-1" / "best"))  # which is read before it is cleared
    assert run(command(tmp_path, *anew)) == 0 and capsys.readouterr().out.count("(phase ") == 3


def test_a_phase_is_named_by_its_member_whatever_brackets_stand_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine (1)"
    folder.mkdir()
    (folder / "own.py").write_text(
        "from kinformer import member\nfrom kinformer.members.gpt import gpt\n\n\n@member\n"
        "def own(pattern: str = 'Causal()', length: int = 8):\n"
        "    return gpt(d=16, depth=1, heads=2, pattern=pattern, length=length)\n"
    )
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200)
    words = [
        "train",
        f"{folder}/own.py:own",
        "pattern=Causal() & (Band(3) | Band(5))",
        "--data",
        f"text={tmp_path}/text",
    ]
    words += ["--steps", "1", "--batch", "2", "--length", "8", "--then", "steps=1", "--then", "steps=2"]
    assert run([*words, "--out", f"{tmp_path}/run"]) == 0
    name = f"{folder}/own.py:own(pattern=Causal() & (Band(3) | Band(5))"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{name}) (phase 1 of 3): ")
    assert lines[1].startswith(f"{name}, length=16) (phase 2 of 3): ")
    assert lines[2].startswith(f"{name}, length=32) (phase 3 of 3): ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--then", "d=32"],
            "phase 2, gpt(d=32, depth=1, heads=2, length=16): the weights do not fit the model: got weights for d=16",
        ),
        (["--then", "steps=x"], "--then steps=x: expected a number. Write for example steps=100"),
        (["--then", "steps=1,minutes=1"], "--then steps=1,minutes=1: got steps= and minutes=, expected only one"),
        (["--then", "steps=1,steps=2"], "gives a setting twice"),
        (["--then", "lr=-1"], "lr must be above 0, got -1.0"),
        (["--then", "windw=3"], "the member 'gpt' has no keyword 'windw'"),
    ],
)
def test_what_a_phase_cannot_be_is_said_in_a_line_before_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(command(tmp_path, *options)) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and not (tmp_path / "run").exists()
