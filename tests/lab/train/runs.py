"""What the tests of runs share: a training that is killed, what its files say, and small settings."""

import json
from pathlib import Path
from typing import Any

import torch

from kinformer.core.model import Model
from kinformer.lab.data.text import TextData
from kinformer.lab.train.progress import ProgressDisplay, Status
from kinformer.lab.train.settings import Settings

SMALL = Settings(batch=3, length=12, lr=1e-2, measures=3, valid_bytes=40)


class Killed(BaseException):
    """The process is no more: nothing catches it and nothing is cleaned up."""


class KilledAt(ProgressDisplay):
    def __init__(self, step: int) -> None:
        self.step = step

    def status(self, status: Status) -> None:
        if status.step == self.step:
            raise Killed


def lines(folder: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl says, the clock left out."""
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("seconds", "minutes")} for line in entries]


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in lines(folder) if "step" in line]


def same(first: Model, other: Model) -> bool:
    a, b = first.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def noise() -> TextData:
    train, valid = torch.randint(256, (400,), dtype=torch.uint8), torch.randint(256, (60,), dtype=torch.uint8)
    return TextData("noise", train, valid, valid)
