"""Contenders timed side by side: in one process, turn by turn, and compared round by round."""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module, metadata
from math import comb
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch

import kinformer

# A contender makes ready, which is not timed, and returns the call that is.
Contender = Callable[[], Callable[[], object]]


class Middle(NamedTuple):
    """A median and the interval that holds it."""

    median: float
    low: float
    high: float


def setup(description: str) -> int:
    """Read the command line, make the process fit to measure in, say where it runs; return the number of rounds."""
    return setup_with_words(description)[0]


def setup_with_words(description: str, words_help: str | None = None) -> tuple[int, list[str]]:
    """As `setup`, and the words given for `what` is to be measured, none for all of it."""
    if os.environ.get("OMP_WAIT_POLICY") != "passive":
        # libgomp reads it when it is loaded; waiting actively on shared cores makes the same code ten times slower
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=11, help="turns of every contender (default 11)")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (default 2)")
    if words_help is not None:
        parser.add_argument("what", nargs="*", help=words_help)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(
        description, "", f"{_where()}, {options.threads} threads", _versions(), _interval(options.rounds), "", sep="\n"
    )
    return options.rounds, getattr(options, "what", [])


@cache
def optional(module: str, install: str) -> ModuleType | None:
    """The module of a contender, or None and a line that says how to get it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        print(f"left out: {module} ({missing}); to have it: {install}\n")
        return None


def ready(call: Callable[[], object]) -> Contender:
    """A contender that has nothing to make ready."""
    return lambda: call


def race(contenders: Mapping[str, Contender], rounds: int) -> dict[str, list[float]]:
    """The seconds of each contender in each round, after one untimed turn; every round begins with another one."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for n in range(-1, rounds):
        for name in names[n % len(names) :] + names[: n % len(names)]:
            call = contenders[name]()
            begin = time.perf_counter()
            call()
            if n >= 0:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def report(title: str, seconds: Mapping[str, Sequence[float]], tokens: int, steps: int = 1) -> None:
    """A table of medians; the first contender is kinformer, the last column its speed over that of each other one."""
    print(f"| {title} | ms a step | tokens/s | speed of kinformer over it |\n|---|---|---|---|")
    first = next(iter(seconds))
    for name, own in seconds.items():
        took = middle(each * 1e3 / steps for each in own)
        ratio = middle(other / ours for ours, other in zip(seconds[first], own, strict=True))
        speed = f"{tokens / steps / took.median * 1e3:,.0f}"
        print(f"| {name} | {format_interval(took)} | {speed} | {'' if name == first else format_interval(ratio)} |")
    print(flush=True)


def middle(values: Iterable[float]) -> Middle:
    """The median, and the interval from the k-th smallest to the k-th largest value, of 95% or more where it can be."""
    ordered = sorted(values)
    k = _rank(len(ordered))
    return Middle(statistics.median(ordered), ordered[k - 1], ordered[-k])


def _rank(n: int) -> int:
    return max((k for k in range(1, (n + 1) // 2) if _coverage(n, k) >= 0.95), default=1)


def _coverage(n: int, k: int) -> float:
    """How often the median of what n values are drawn from lies between the k-th smallest and the k-th largest."""
    return 1 - 2 * sum(comb(n, i) for i in range(k)) / 2**n


def _interval(rounds: int) -> str:
    k = _rank(rounds)
    return (
        f"Medians of {rounds} rounds, ratios taken within each. [low, high]: number {k} and number {rounds + 1 - k} of "
        f"the ordered values, a {_coverage(rounds, k):.1%} interval of their median."
    )


def format_interval(value: Middle) -> str:
    return f"{value.median:,.2f} [{value.low:,.2f}, {value.high:,.2f}]"


def _where() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{time.strftime('%Y-%m-%d')}, {processor}, {os.cpu_count()} cores{load}"


def _versions() -> str:
    versions = {distribution.metadata["Name"]: distribution.version for distribution in metadata.distributions()}
    named = [f"{name} {versions[name]}" for name in ("torch", "transformers", "x-transformers") if name in versions]
    return f"kinformer {versions['kinformer']} ({commit()}), Python {platform.python_version()}, {', '.join(named)}"


def commit() -> str:
    """The commit of the checkout that is measured."""
    command = ["git", "-C", str(Path(kinformer.__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no checkout"
