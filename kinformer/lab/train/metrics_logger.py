"""MetricsLogger: the contract of loggers, which record the numbers of metrics.jsonl in another place."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable


@runtime_checkable
class MetricsLogger(Protocol):
    """A place besides metrics.jsonl that records the numbers of a training, such as TensorBoard.

    Choose it for a service that draws curves during the training. A logger needs only these two methods.
    """

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record the numbers of a step or of a measurement.

        step: number of optimiser steps that were taken.
        numbers: the numbers by name, such as {"loss": 2.1, "lr": 0.001}.
        """

    def close(self) -> None:
        """Write what is left, and close the logger."""


class LoggedRun(NamedTuple):
    """Facts about a training that its loggers record.

    name: name of the training.
    folder: folder of its run.
    config: the member, its keywords, and the settings of the training.
    resumed: True if the training continues a run that was stopped.
    group: name of the comparison that the training belongs to; "" for a single training.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    resumed: bool = False
    group: str = ""


def step_and_numbers(line: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """Return the step of a line of metrics.jsonl, and all its other numbers by name.

    line: the parsed line of a step or of a measurement. A number within an entry, such as `parts`, is named after both,
        such as "parts/penalty".
    """
    step, numbers = line["step"] if "step" in line else line["after"], dict[str, float]()
    for name, value in line.items():
        if isinstance(value, Mapping):
            numbers |= {f"{name}/{inner}": number for inner, number in value.items()}
        elif name not in ("step", "after"):
            numbers[name] = value
    return step, numbers


def check_installed(package: str, option: str) -> None:
    """Raise ImportError, with the command to install it, if the package of a logger is missing.

    package: name of the package to import.
    option: name of the extra of kinformer that installs it, and of the option that needs it.
    """
    if find_spec(package) is None:
        raise ImportError(
            f"{package} is not installed; run `pip install '.[{option}]'` in kinformer's folder, or leave out the "
            f"option {option}"
        )
