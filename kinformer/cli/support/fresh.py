"""Fresh: what `kinformer cost` says of a member in a process of its own, where nothing has run before."""

import os
import subprocess
import sys
from typing import Any

from kinformer.cli.errors import UserError
from kinformer.cli.support.afford import decides_length, without_numbers
from kinformer.cli.support.wanted import Wanted
from kinformer.core.from_json import from_json
from kinformer.core.keywords import as_texts, name_of


def costs(one: Wanted, batch: int, length: int) -> dict[str, Any]:
    """The numbers of `Cost`, of such batches; UserError where that process refuses them."""
    name = one.name if ".py:" in one.name else name_of(one.function)
    rows = [] if decides_length(without_numbers(one)) else ["--length", str(length)]
    words = [name, *as_texts(one.keywords), "--batch", str(batch), *rows, "--json"]
    # a file of the working folder stands in for a module of its name there only where it does so here
    safely = [] if {"", os.getcwd()} & {*sys.path} else ["-P"]
    command = [sys.executable, *safely, "-m", "kinformer.cli", "cost", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        told = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise UserError(f"{one.text} cannot be measured: {told.removeprefix('kinformer: ')}")
    found: dict[str, Any] = from_json(done.stdout)
    return found
