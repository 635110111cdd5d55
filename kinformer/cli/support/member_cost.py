"""Cost of training a member, measured by `kinformer cost` in a new process."""

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from kinformer.cli.support.memory_limits import decides_length
from kinformer.cli.support.training import Job
from kinformer.core.from_json import from_json
from kinformer.core.keywords import as_texts, name_of
from kinformer.core.model import Model
from kinformer.lab.cost.cost import predicts_last
from kinformer.lab.cost.free_memory import build_without_numbers
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import MemberChoice
from kinformer.lab.train.member_fit import longest_row


def measure_in_new_process(
    choice: MemberChoice, batch: int, length: int, device: str = "cpu", precision: str = "float32"
) -> dict[str, Any]:
    """Run `kinformer cost` in a new process, and return the numbers that it prints.

    choice: the member.
    batch: rows of a batch.
    length: tokens of a row.
    device, precision: the device and the number format to measure with.

    Nothing has run in that process before, so its memory is the memory of the training. Returns the fields of
    `lab.cost.Cost` by name. Errors: UserError with the message of that process if it fails.
    """
    name = choice.name if ".py:" in choice.name else name_of(choice.function)
    rows = [] if decides_length(build_without_numbers(choice)) else ["--length", str(length)]
    words = [name, *as_texts(choice.keywords), "--batch", str(batch), *rows, "--json", "--device", device]
    words += ["--precision", precision]
    # -P keeps files of the working folder from shadowing modules, unless that folder is already on this sys.path
    safely = [] if {"", os.getcwd()} & {*sys.path} else ["-P"]
    command = [sys.executable, *safely, "-m", "kinformer.cli", "cost", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        error = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise UserError(f"cannot measure the cost of {choice.text}: {error.removeprefix('kinformer: ')}")
    numbers: dict[str, Any] = from_json(done.stdout)
    return numbers


@dataclass(frozen=True)
class MemberCost:
    """Cost of training one member in a comparison.

    step_flops: additions and multiplications of a training step.
    state: bytes of the decoding state of a row; None if the model has no state.
    process: most bytes of memory of a process that trains the member.
    """

    step_flops: int
    state: int | None
    process: int

    @classmethod
    def measure(cls, choice: MemberChoice, model: Model, job: Job) -> "MemberCost":
        """Measure the cost of training a member with the data and settings of a job, in a new process.

        choice: the member.
        model: the model that it builds.
        job: the data and settings, which fix the batch size and the row length.

        If the system does not report the memory of a process, `process` holds the bytes of its tensors.
        """
        # rows of data other than text already include the predicted last token
        ends = predicts_last(model) and not isinstance(job.data, TextData)
        length = longest_row(job.data, job.settings) - int(ends)
        numbers = measure_in_new_process(choice, job.settings.batch, length, str(job.device), job.settings.precision)
        return cls(numbers["step_flops"], numbers["state"], numbers["process"] or numbers["peak"])
