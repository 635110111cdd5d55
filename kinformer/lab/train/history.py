"""History: the steps and measurements of a training, and the file that records them."""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import contents, crc32
from kinformer.checkpoint.model_files import METRICS
from kinformer.core.from_json import from_json
from kinformer.core.model import Metric


@dataclass(frozen=True)
class Point:
    """A measurement during training: the metric on validation data and the training loss.

    step: number of optimiser steps taken before the measurement.
    minutes: training time before the measurement.
    train: smoothed training loss, in bits if the metric is in bits, otherwise in the unit of the loss.
    valid: the metric on validation data.
    extras: further metrics by name, such as the fraction of rows of a task with only correct answers.
    """

    step: int
    minutes: float
    train: float
    valid: float
    extras: Mapping[str, float] = field(default_factory=dict)


@dataclass
class History:
    """The record of a training: its measurements, tokens and seconds, without evaluation and saving.

    metric: the metric of the measurements.
    points: the measurements, in order.
    step: number of steps taken.
    tokens: number of tokens trained on.
    seconds: training time.
    """

    metric: Metric
    points: list[Point] = field(default_factory=list)
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def best(self) -> Point:
        """The measurement with the best metric on validation data; its model is saved in the folder `best`."""
        sign = 1 if self.metric.better == "less" else -1
        return min(self.points, key=lambda point: sign * point.valid)

    @property
    def speed(self) -> float:
        """Tokens per second of training."""
        return self.tokens / max(self.seconds, 1e-9)

    @classmethod
    def read(cls, folder: str | Path, size: int | None = None) -> "History":
        """Read the `metrics.jsonl` of a run, without a last line that a kill has cut off.

        folder: the run folder.
        size: number of bytes to read; the whole file by default.

        Errors: ValueError, in one line, if the file is no record of a training; OSError, in one line, if it cannot be
        read.
        """
        path = Path(folder) / METRICS
        lines = contents(path, size=-1 if size is None else size).splitlines(keepends=True)
        try:
            entries = [from_json(line) for line in lines if line.endswith(b"\n")]
            history = cls(Metric(**entries[0]["metric"]))
            for line in entries[1:]:
                history.add(line)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{path} is not a record of a training: {type(error).__name__}: {error}") from error
        return history

    def add(self, line: dict[str, Any]) -> None:
        """Add a parsed line of `metrics.jsonl`: a step or a measurement. Other lines change nothing."""
        if "step" in line:
            self.step, self.tokens = (_check_integer(line[name]) for name in ("step", "tokens"))
            self.seconds = _check_number(line["seconds"])
        elif "valid" in line:
            extras = {name: _check_number(value) for name, value in line.get("others", {}).items()}
            minutes, train, valid = (_check_number(line[name]) for name in ("minutes", "train", "valid"))
            self.points.append(Point(_check_integer(line["after"]), minutes, train, valid, extras))


def _check_number(value: Any) -> Any:
    """Return the value, or raise TypeError if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is not a number")
    return value


def _check_integer(value: Any) -> Any:
    """Return the value, or raise TypeError if it is not an integer."""
    if not isinstance(_check_number(value), int):
        raise TypeError(f"{value!r:.40} is not a whole number")
    return value


class Metrics:
    """Writer of `metrics.jsonl`: a line with metric and data, then a line per step and measurement.

    Only the lines of steps have the entry `step`: the number of steps taken, including this one. If a run resumes, the
    file is cut to `size` bytes. This removes the lines after the last save, so each step appears only once.

    folder: the run folder.
    metric: the metric of the measurements.
    size: bytes to keep; 0 starts a new file.
    about: further entries of the first line.
    """

    def __init__(self, folder: Path, metric: Metric, size: int = 0, about: Mapping[str, Any] | None = None) -> None:
        self.path = folder / METRICS
        self.file = self.path.open("r+b" if size else "wb", buffering=0)
        self.file.truncate(size)
        self.file.seek(size)
        self.size = size
        self.sum = crc32(self.path, size) if size else 0
        if not size:
            self.write({"metric": metric._asdict(), **(about or {})})

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; OSError, in one line, if the disk is full."""
        data = f"{json.dumps(line)}\n".encode()
        try:
            written = self.file.write(data)
            if written != len(data):  # a disk that fills up writes a part; the next write raises
                self.file.write(data[written:])
        except OSError as error:
            raise OSError(f"cannot write {self.path}: {error.strerror}; the previous save is kept") from error
        self.size += len(data)
        self.sum = zlib.crc32(data, self.sum)

    def on_disk(self) -> int:
        """Flush the file to disk and return its size in bytes, which a save records."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise OSError(f"cannot write {self.path}: {error.strerror}; the previous save is kept") from error
        return self.size

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class SilentMetrics(Metrics):
    """A metrics writer that writes nothing, for the processes of a training other than the first."""

    size = sum = 0

    def __init__(self) -> None:
        """Open nothing."""

    def write(self, line: dict[str, Any]) -> None:
        """Write nothing."""

    def on_disk(self) -> int:
        """Return 0."""
        return 0

    def close(self) -> None:
        """Do nothing."""
