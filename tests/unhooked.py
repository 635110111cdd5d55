"""A fresh process without the run-time check of annotations: what users run, and what the compiler can trace."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUN = """
import importlib, json, sys, warnings
warnings.simplefilter("error")
module, _, name = sys.argv[1].partition(":")
print(json.dumps(getattr(importlib.import_module(module), name)()))
"""


@functools.cache
def unhooked(place: str) -> Any:
    """What the function "tests.folder.module:name" gives there; its failure fails the test that asked."""
    done = subprocess.run([sys.executable, "-c", RUN, place], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def refusals(makes: Sequence[Callable[[], object]]) -> list[str]:
    """What each call says when it is refused: "ValueError: .."; "" for one that is not."""
    return [_refusal(make) for make in makes]


def _refusal(make: Callable[[], object]) -> str:
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
