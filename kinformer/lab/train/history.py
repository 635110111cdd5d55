"""History: what a training did, measurement by measurement, and the file of a run that tells it step by step."""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import contents, crc32
from kinformer.core.from_json import from_json
from kinformer.core.model import Metric

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Point:
    """A measurement: after so many steps and minutes of training, the metric on valid and the loss in training.

    `train` is smoothed, in bits where the metric is in bits and else in the loss's own unit; `extras` are what else was
    measured, such as the rows of a task whose answers are all right.
    """

    step: int
    minutes: float
    train: float
    valid: float
    extras: Mapping[str, float] = field(default_factory=dict)


@dataclass
class History:
    """What a training did: its points, and the tokens and seconds it took, measuring and saving not counted."""

    metric: Metric
    points: list[Point] = field(default_factory=list)
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def best(self) -> Point:
        """The point with the best metric on valid: the model that the run keeps in `best`."""
        sign = 1 if self.metric.better == "less" else -1
        return min(self.points, key=lambda point: sign * point.valid)

    @property
    def speed(self) -> float:
        """Tokens per second of training."""
        return self.tokens / max(self.seconds, 1e-9)

    @classmethod
    def read(cls, folder: str | Path, size: int | None = None) -> "History":
        """What the `metrics.jsonl` of a run tells, or its first `size` bytes; what a kill tore off is left out.

        Errors: ValueError, in one line, for a file that is no such one; OSError, in one line, if it cannot be read.
        """
        path = Path(folder) / METRICS
        lines = contents(path, size=-1 if size is None else size).splitlines(keepends=True)
        try:
            entries = [from_json(line) for line in lines if line.endswith(b"\n")]
            history = cls(Metric(**entries[0]["metric"]))
            for line in entries[1:]:
                history.add(line)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{path} is no record of a training: {error!r}") from error
        return history

    def add(self, line: dict[str, Any]) -> None:
        """What a line of the file tells: of a step, or of a measurement."""
        if "step" in line:
            self.step, self.tokens = (_check_integer(line[name]) for name in ("step", "tokens"))
            self.seconds = _check_number(line["seconds"])
        elif "valid" in line:
            extras = {name: _check_number(value) for name, value in line.get("others", {}).items()}
            minutes, train, valid = (_check_number(line[name]) for name in ("minutes", "train", "valid"))
            self.points.append(Point(_check_integer(line["after"]), minutes, train, valid, extras))


def _check_number(value: Any) -> Any:
    """What a line says, which must be a number: TypeError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    return value


def _check_integer(value: Any) -> Any:
    """What a line says, which must be a whole number: TypeError for another."""
    if not isinstance(_check_number(value), int):
        raise TypeError(f"{value!r:.40} is no whole number")
    return value


class Metrics:
    """Writes `metrics.jsonl`: first a line with metric and data, then a line for each step and measurement.

    Lines of steps, and no others, have `step`: how many steps were made, its own included. What a kill has left behind
    the last save is cut off when a run goes on (`size` bytes are kept), so that each step stands there once.
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
        """Add a line; OSError, in one line, where the disk is full."""
        data = f"{json.dumps(line)}\n".encode()
        try:
            written = self.file.write(data)
            if written != len(data):  # a disk that fills up takes a part, and refuses the rest
                self.file.write(data[written:])
        except OSError as error:
            raise OSError(f"cannot write {self.path}: {error.strerror}; what was saved before is kept") from error
        self.size += len(data)
        self.sum = zlib.crc32(data, self.sum)

    def on_disk(self) -> int:
        """How many bytes are written, once all of them are on the disk: a save counts on them."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise OSError(f"cannot write {self.path}: {error.strerror}; what was saved before is kept") from error
        return self.size

    def close(self) -> None:
        """Leave the file to others."""
        self.file.close()


class SilentMetrics(Metrics):
    """The lines of a process that leaves the file to another."""

    size = sum = 0

    def __init__(self) -> None:
        """Open nothing."""

    def write(self, line: dict[str, Any]) -> None:
        """Write nothing."""

    def on_disk(self) -> int:
        """Nothing is written."""
        return 0

    def close(self) -> None:
        """Leave nothing."""
