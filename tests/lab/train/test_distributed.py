"""Two processes train a model as one does: the same losses, the same measurements, the same run to go on with."""

import json
from pathlib import Path
from typing import Any

import pytest

from kinformer.checkpoint.checkpoint import load
from kinformer.core.discover import modules
from kinformer.core.example import Example
from tests.lab.train.processes import run_jobs

FORMS = ("alone", "ddp", "shard")
# with two heads a capsule's variance is at its floor, and a difference of rounding grows tenfold in two steps
STIFF = [("routing_by_agreement", 0)]
# declared breaks of which rows as long as a training's show next to nothing; the law `shard` finds them in ragged ones
LITTLE = [("decision_transformer", 1), ("etc", 2), ("nystromformer", 2), ("universal_transformer", 3)]
PARTS = 4  # of all examples, one after the other
CLOSE = 1e-4  # in float32, over ten steps of an Adam that makes much of little


def every() -> list[tuple[str, int]]:
    """Every example of every member, by its place."""
    return [
        (name, n) for name, module in modules("members").items() for n in range(len(getattr(module, "EXAMPLES", ())))
    ]


def breaks(member: str, example: int) -> str | None:
    """Why shares of a batch train it otherwise than the whole, where its example declares that they do."""
    return Example.from_entry(modules("members")[member].EXAMPLES[example]).breaks.get("shard")


def gaps(cases: list[tuple[str, int]], folder: Path, **keywords: Any) -> dict[str, float]:
    """The largest difference from one process's training, of a loss or a measurement, by example and form."""
    names = [f"{member}.{n}" for member, n in cases]
    jobs = [{"member": m, "example": n, "form": form, **keywords} for m, n in cases for form in FORMS]
    results = run_jobs(jobs, folder)
    assert len(results) == len(jobs)
    trios = [results[first : first + len(FORMS)] for first in range(0, len(results), len(FORMS))]
    return {
        f"{name} {form}": apart(trio[0], other)
        for name, trio in zip(names, trios, strict=True)
        for form, other in zip(FORMS[1:], trio[1:], strict=True)
    }


def apart(first: dict[str, Any], second: dict[str, Any]) -> float:
    """The largest difference between two trainings."""
    assert first["tokens"] == second["tokens"]
    pairs = [pair for measure in ("loss", "valid") for pair in zip(first[measure], second[measure], strict=True)]
    return max(abs(a - b) for a, b in pairs)


def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    """Text in lanes with a state, a penalty and what follows a step, and pairs of unequal lengths; in pieces."""
    settings = {"accumulate": 2, "checkpointing": True}
    differences = gaps([("adaptive_span", 0), ("transformer", 0)], tmp_path, steps=4, settings=settings)
    assert len(differences) == 4 and max(differences.values()) < CLOSE, differences


@pytest.mark.prove
def test_a_run_goes_on_in_another_number_of_processes(tmp_path: Path) -> None:
    """One, two, two with weights in shares, one again, and then two: as one that never stopped."""
    base = {"member": "transformer_xl", "example": 0, "schedule": "constant"}
    forms = ("alone", "ddp", "shard", "alone", "shard", "ddp")
    parts = [
        {**base, "form": form, "steps": 3 * n, "folder": str(tmp_path / "run"), "resume": n > 1}
        for n, form in enumerate(forms, 1)
    ]
    whole, *results = run_jobs([{**base, "form": "alone", "steps": 3 * len(forms)}, *parts], tmp_path)
    losses = [loss for part in results for loss in part["loss"]]
    last = {"loss": losses, "valid": results[-1]["valid"][-1:], "tokens": results[-1]["tokens"]}
    assert apart({**whole, "valid": whole["valid"][-1:]}, last) < CLOSE
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "best",
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "trainer",
    ]
    model = load(tmp_path / "run")
    assert all(value.isfinite().all() for value in model.state_dict().values())
    steps = [json.loads(line).get("step") for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step for step in steps if step] == list(range(1, 3 * len(forms) + 1))


@pytest.mark.prove
@pytest.mark.parametrize("first", range(PARTS))
def test_two_processes_train_every_member_as_one_does(first: int, tmp_path: Path) -> None:
    asked_of = every()[first::PARTS]
    for name in ("long", "stiff"):
        (tmp_path / name).mkdir()
    stiff = [case for case in asked_of if case in STIFF]
    differences = gaps([case for case in asked_of if case not in STIFF], tmp_path / "long", steps=10)
    differences |= gaps(stiff, tmp_path / "stiff", steps=2) if stiff else {}
    declared = {case for case in asked_of if breaks(*case) is not None and case not in LITTLE}
    wrong = {
        f"{member}.{n} {form}": gap
        for member, n in asked_of
        for form in FORMS[1:]
        if ((gap := differences[f"{member}.{n} {form}"]) >= CLOSE) != ((member, n) in declared)
    }
    assert not wrong
