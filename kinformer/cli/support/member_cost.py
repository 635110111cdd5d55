"""What `kinformer cost` says of a member in a process of its own, where nothing has run before."""

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


def measure_in_new_process(choice: MemberChoice, batch: int, length: int) -> dict[str, Any]:
    """The numbers of `Cost`, of such batches; UserError where that process refuses them."""
    name = choice.name if ".py:" in choice.name else name_of(choice.function)
    rows = [] if decides_length(build_without_numbers(choice)) else ["--length", str(length)]
    words = [name, *as_texts(choice.keywords), "--batch", str(batch), *rows, "--json"]
    # a file of the working folder stands in for a module of its name there only where it does so here
    safely = [] if {"", os.getcwd()} & {*sys.path} else ["-P"]
    command = [sys.executable, *safely, "-m", "kinformer.cli", "cost", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        error = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise UserError(f"{choice.text} cannot be measured: {error.removeprefix('kinformer: ')}")
    numbers: dict[str, Any] = from_json(done.stdout)
    return numbers


@dataclass(frozen=True)
class MemberCost:
    """What a member takes: additions and multiplications of a step, bytes of a state, and of a process that trains."""

    step_flops: int
    state: int | None
    process: int

    @classmethod
    def measure(cls, choice: MemberChoice, model: Model, job: Job) -> "MemberCost":
        """What a fresh process says of the batches of a job; where the system tells no memory, what tensors take."""
        ends = predicts_last(model) and not isinstance(
            job.data, TextData
        )  # rows of other data end with what is predicted
        numbers = measure_in_new_process(choice, job.settings.batch, longest_row(job.data, job.settings) - int(ends))
        return cls(numbers["step_flops"], numbers["state"], numbers["process"] or numbers["peak"])
