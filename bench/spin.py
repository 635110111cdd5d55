"""Training steps of `gpt` by how long OpenMP threads spin before they sleep, alone and beside six busy processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from interleave import Contender, format_interval, middle, race, setup_with_words

TODAY = "unset"  # libgomp's own: 300,000 turns, a millisecond
COUNTS = ("500", "1000", "2000", "5000")
BUSY = 6
BATCH, LENGTH = 16, 256  # the defaults of `kinformer train`
WORKER = f"""
import sys
import torch
from kinformer.members.gpt import gpt

torch.manual_seed(0)
model = gpt()
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(256, ({BATCH}, {LENGTH} + 1))
for line in sys.stdin:
    for _ in range(int(line)):
        optimiser.zero_grad()
        model(tokens).total.backward()
        optimiser.step()
    print("done", flush=True)
"""


class Worker:
    """A process that trains under one spin count, whenever it is asked to."""

    def __init__(self, count: str):
        env = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
        env.pop("OMP_NUM_THREADS", None)
        if count != TODAY:
            env["GOMP_SPINCOUNT"] = count
        command = [sys.executable, "-c", WORKER]
        self.process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def train(self, steps: int) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        if self.process.stdout.readline() != "done\n":
            raise RuntimeError("a worker ended before its steps were done; its error stands above")


@contextmanager
def workers(counts: Sequence[str]) -> Iterator[dict[str, Worker]]:
    """One worker for each spin count, which has made a step already."""
    running = {count: Worker(count) for count in counts}
    try:
        for worker in running.values():
            worker.train(1)
        yield running
    finally:
        for worker in running.values():
            worker.process.kill()
            worker.process.wait()


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def contender(worker: Worker, steps: int) -> Contender:
    def begin() -> Callable[[], None]:
        return lambda: worker.train(steps)

    return begin


def measure(counts: Sequence[str], processes: int, steps: int, rounds: int) -> None:
    """A table of the speed under each spin count, over that of today."""
    with workers((TODAY, *counts)) as running, busy(processes):
        seconds = race({name: contender(worker, steps) for name, worker in running.items()}, rounds)
    print(f"| {processes} busy processes beside it | tokens/s | speed over today's |\n|---|---|---|")
    for name, own in seconds.items():
        speed = middle(BATCH * LENGTH * steps / duration for duration in own)
        ratio = middle(before / now for before, now in zip(seconds[TODAY], own, strict=True))
        print(f"| {name} | {format_interval(speed)} | {format_interval(ratio)} |")
    print(flush=True)


if __name__ == "__main__":
    rounds, chosen_counts = setup_with_words(__doc__, "spin counts (default 500 1000 2000 5000)")
    measure(chosen_counts or COUNTS, 0, 3, rounds)
    measure(chosen_counts or COUNTS, BUSY, 1, rounds)
