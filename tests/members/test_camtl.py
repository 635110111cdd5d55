"""camtl's keywords reach its parts, frozen layers stay as they are, and it trains from the command line."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.lab.train.fit import fit
from kinformer.members.camtl import camtl
from kinformer.models.multitask import MultiTask
from kinformer.nn.biases.camtl import CAMTL, CAMTLByColumn, ConditionalBlocks
from tests.lab.data.test_multitask import FILES, written

SMALL: dict[str, Any] = {"d": 8, "depth": 3, "heads": 2, "length": 24, "blocks": 5, "classes": (3, 2)}


def priors(model: MultiTask) -> list[ConditionalBlocks | None]:
    return [layer.layers[0].mechanism.bias for layer in model.body.layers]  # type: ignore[union-attr]


def test_keywords_reach_the_parts() -> None:
    below, first, second = priors(camtl(**SMALL))
    assert below is None and isinstance(first, CAMTLByColumn) and isinstance(second, CAMTLByColumn)
    assert first.embedding is second.embedding and first.blocks.shape == (24, 5)
    only = priors(camtl(**SMALL, form="pairs", upper=1, pool="first"))
    assert only[:2] == [None, None] and isinstance(only[2], CAMTL) and only[2].blocks.shape == (25, 5)
    assert camtl(**SMALL, pool="first").longest == 24
    for wrong in ({"upper": 4}, {"frozen": 4}, {"blocks": 25}, {"form": "rows"}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            camtl(**{**SMALL, **wrong})


def test_the_first_loss_is_that_of_a_guess() -> None:
    """Every row's is near the logarithm of how many classes its own task has."""
    model = camtl(**{**SMALL, "vocab": 11}).eval()
    tokens, task, targets = model.sample(64, 12, 0)
    guess = sum(math.log(model.classes[int(n)]) for n in task) / 64
    assert abs(model((tokens, task, targets)).total.item() - guess) < 0.35


def test_frozen_layers_stay_and_what_tells_their_task_learns(tmp_path: Path) -> None:
    model = camtl(**SMALL, upper=3, frozen=2)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    fit(model, f"multitask={written(tmp_path, FILES)}", steps=3, batch=8, length=24, lr=1e-2)
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    low = {name for name in before if not name.startswith(("body.layers.2", "head", "pooling"))}
    assert {name for name in low & changed if ".bias." not in name} == set()
    assert any("layers.0" in name and ".bias." in name for name in changed)
    assert (
        any(name.startswith("body.layers.2") and "projection" in name for name in changed) and "head.weight" in changed
    )


def test_the_command_line_takes_classes_of_the_data_and_judges_each_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, small = f"multitask={written(tmp_path / 'data', FILES)}", ["d=8", "depth=1", "heads=2", "length=24"]
    words = ["--steps", "2", "--batch", "4", "--length", "24", "--out", str(tmp_path / "run")]
    assert run(["train", "camtl", *small, "--data", data, *words]) == 0
    loaded = load(tmp_path / "run")
    assert loaded.classes == (3, 2) and loaded.names == ["kind", "parity"]
    capsys.readouterr()
    assert run(["evaluate", str(tmp_path / "run"), "--data", data, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "accuracy of parity" in str(report)
    unsure = ["--data", f"{data},sampling=uncertainty", *words[:-1], str(tmp_path / "unsure")]
    assert run(["train", "camtl", *small, *unsure]) == 0
    assert run(["train", "gpt", "--data", data, "--steps", "1", "--out", str(tmp_path / "gpt")]) == 2
    assert "kinformer: gpt reads a text, but got labelled text of several tasks; give text=" in capsys.readouterr().err
    assert run(["train", "camtl", *small, "classes=2,2", "--data", data, *words[:-1], str(tmp_path / "other")]) == 2
    assert "give it classes=3,2" in capsys.readouterr().err


def test_it_begins_with_what_bert_knows(tmp_path: Path) -> None:
    """The paper's use: a trained body, its lower layers held, the upper ones told the task by parts that are new."""
    (tmp_path / "text").write_bytes(b"some text that bert reads before. " * 40)
    sizes, options = ["d=8", "depth=2", "heads=2", "length=24"], ["--length", "24", "--batch", "4", "--steps"]
    spec = f"multitask={written(tmp_path / 'data', FILES)}"
    text = f"text={tmp_path / 'text'}"
    assert run(["train", "bert", *sizes, *options, "2", "--data", text, "--out", str(tmp_path / "bert")]) == 0
    words = ["train", "camtl", *sizes, "frozen=1", *options, "1", "--data", spec, "--lr", "1e-9"]
    assert run([*words, "--out", str(tmp_path / "run"), "--from", str(tmp_path / "bert")]) == 0
    old, new = (load(tmp_path / name).state_dict() for name in ("bert", "run"))
    shared = {name for name in new if not name.startswith(("head", "pooling")) and ".bias." not in name}
    assert shared == {name for name in old if not name.startswith(("head", "transform"))}
    for name in shared:
        torch.testing.assert_close(new[name], old[name], rtol=0, atol=1e-6)
