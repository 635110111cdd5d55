"""TensorBoard: the numbers of metrics.jsonl as events."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.fit import fit
from kinformer.lab.train.history import History
from kinformer.lab.train.loggers import logging_to
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.tensorboard_events import TensorBoardEvents
from kinformer.lab.train.train import train
from tests.lab.train import tiny

SMALL = Settings(batch=2, length=8, valid_bytes=50, measures=2)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboardX.proto.event_pb2 import Event

    by_tag: dict[str, dict[int, float]] = {}
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")  # length, its check sum, the event, its check sum
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            for value in event.summary.value:
                by_tag.setdefault(value.tag, {})[event.step] = value.simple_value
    return by_tag


def test_events_say_what_metrics_say(tmp_path: Path) -> None:
    with logging_to([TensorBoardEvents(tmp_path / "tensorboard")]) as log_line:
        train(tiny.bigram(), tiny.text(), StepBudget(4), SMALL, folder=tmp_path / "run", on_metrics=log_line)
    by_tag, history = scalars(tmp_path / "tensorboard"), History.read(tmp_path / "run")
    assert set(by_tag) == {"loss", "lr", "norm", "tokens", "seconds", "train", "valid", "minutes"}
    assert list(by_tag["loss"]) == [1, 2, 3, 4]
    assert by_tag["valid"] == pytest.approx({point.step: point.valid for point in history.points}, rel=1e-6)


def test_without_the_package_a_line_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"tensorboardX is not installed; run `pip install '.\[tensorboard\]'"):
        TensorBoardEvents(tmp_path)


def test_fit_writes_events_and_calls_a_function_with_each_line(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    quick = {"steps": 3, "batch": 2, "length": 8}
    fit(tiny.bigram(), tiny.text(), **quick, out=tmp_path / "run", tensorboard=True, on_metrics=lines.append)
    assert list(scalars(tmp_path / "run/tensorboard")["loss"]) == [1, 2, 3]
    written = (tmp_path / "run/metrics.jsonl").read_text().splitlines()[1:]
    assert lines == [json.loads(line) for line in written] and len(lines) > 3
    with pytest.raises(ValueError, match="tensorboard=True records into the folder of the run, .* Give out=FOLDER"):
        fit(tiny.bigram(), tiny.text(), **quick, tensorboard=True)
