"""A process without the run-time check of annotations: what users run, and what the compiler can trace.

Checked code runs at a third of its speed, and does not compile. The process is started once for all tests that ask it.
"""

import functools
import importlib
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]


class Unhooked:
    """It calls one function after the other, each as if it were the first."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", "from tests.unhooked import serve; serve()"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def call(self, place: str, *words: str) -> Any:
        """What the function "tests.folder.module:name" gives there; its failure fails the test that asked."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([place, *words]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the process without checks ended at {place} {' '.join(words)}"
        good, answer_text = json.loads(answer)
        assert good, answer_text
        return answer_text

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@functools.cache
def process() -> Unhooked:
    """The one of this run."""
    return Unhooked()


def close() -> None:
    """Ends it, if any test asked it."""
    if process.cache_info().currsize:
        process().close()
        process.cache_clear()


@functools.cache
def unhooked(place: str) -> Any:
    """What the function "tests.folder.module:name" gives where annotations are not checked, called once."""
    return process().call(place)


def serve() -> None:
    """What the process does: a call in, an answer out, as long as they come. What is printed is no answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(_answer(*json.loads(line))), file=answers, flush=True)


def _answer(place: str, *words: str) -> tuple[bool, Any]:
    module, _, name = place.partition(":")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return True, getattr(importlib.import_module(module), name)(*words)
    except Exception:
        return False, traceback.format_exc()


def refusals(makes: Sequence[Callable[[], object]]) -> list[str]:
    """What each call says when it is refused: "ValueError: .."; "" for one that is not."""
    return [_refusal(make) for make in makes]


def _refusal(make: Callable[[], object]) -> str:
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
