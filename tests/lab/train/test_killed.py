"""Real ends of a process: kill -9 at random moments, SIGTERM, a disk that takes no more."""

import json
import math
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.lab.train import loop
from kinformer.lab.train.fit import fit
from kinformer.lab.train.history import History
from kinformer.lab.train.run_folder import RunFolder
from tests.lab.train import tiny

ROOT = Path(__file__).parents[3]
LIFE = """
import math, sys, time, torch
from kinformer.lab.train import loop
from kinformer.lab.train.fit import fit
from kinformer.lab.train.progress import ProgressDisplay
from tests.lab.train import tiny
out, steps, pause, loop.EVERY = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
forward = tiny.Lane.forward
def slow(self, *given):
    time.sleep(pause)
    return forward(self, *given)
tiny.Lane.forward, loop.SHARE = slow, math.inf
torch.manual_seed(0)
print("begun", flush=True)
fit(tiny.lane(d=16), tiny.text(4000), steps=steps, batch=3, length=9, lr=0.01, out=out, resume=True, measures=3)
"""


def life(out: Path, steps: int, pause: float, every: float) -> subprocess.Popen[str]:
    """A process that trains, saving every so many seconds, and goes on with what an earlier one left."""
    words = [sys.executable, "-W", "ignore", "-c", LIFE, str(out), str(steps), str(pause), str(every)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def begun(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None and process.stdout.readline() == "begun\n"


def ended(process: subprocess.Popen[str]) -> int:
    code = process.wait()
    assert process.stdout is not None
    process.stdout.close()
    return code


def killed(out: Path, kills: int, steps: int, pause: float, every: float, longest: float) -> int:
    """Lives that end at random moments, none of which could make all the steps; how many steps were made again."""
    rng, repeated_steps = random.Random(0), 0
    assert longest < steps * pause
    for _ in range(kills):
        process = life(out, steps, pause, every)
        begun(process)
        before = time.monotonic()
        while RunFolder(out).step is None:  # the first life is let live until it has saved
            time.sleep(0.01)
            assert time.monotonic() - before < 60
        time.sleep(rng.uniform(0, longest))
        process.send_signal(signal.SIGKILL)
        assert ended(process) == -signal.SIGKILL
        saved_step, history = RunFolder(out).step, History.read(out)
        assert saved_step is not None and history.step < steps
        assert load(out, tiny.lane).seen == saved_step  # the weights are whole, and of the step that they say
        assert history.step - saved_step <= every / pause + 2  # a step is under way while the clock is looked at
        repeated_steps += history.step - saved_step
    return repeated_steps


def trained(out: Path, steps: int) -> None:
    """What LIFE does, in this process."""
    torch.manual_seed(0)
    options = {"batch": 3, "length": 9, "lr": 0.01, "resume": True, "measures": 3}
    with warnings.catch_warnings(action="ignore"):
        fit(tiny.lane(d=16), tiny.text(4000), steps=steps, out=out, **options)


def whole(folder: Path, out: Path, steps: int) -> None:
    """The run that was killed ends as one that was not."""
    trained(folder, steps)
    trained(out, steps)
    first, other = (load(where, tiny.lane).state_dict() for where in (folder, out))
    assert all(torch.equal(first[name], other[name]) for name in first) and numbered(out) == list(range(1, steps + 1))
    points = [[(point.step, point.valid) for point in History.read(where).points] for where in (folder, out)]
    assert points[0] == points[1]


def numbered(out: Path) -> list[int]:
    lines = (json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if "step" in line]


def test_kills_cost_no_more_than_what_was_not_saved(tmp_path: Path) -> None:
    killed(tmp_path / "killed", 2, 200, 0.01, 0.1, 0.5)
    whole(tmp_path / "whole", tmp_path / "killed", 200)


@pytest.mark.prove
def test_twenty_kills_cost_no_more_than_what_was_not_saved(tmp_path: Path) -> None:
    repeated_steps = killed(tmp_path / "killed", 20, 3000, 0.01, 0.5, 4.0)
    assert repeated_steps > 0  # something was lost now and then, or the kills came at no random moment
    whole(tmp_path / "whole", tmp_path / "killed", 3000)


def test_sigterm_saves_what_there_is(tmp_path: Path) -> None:
    process = life(tmp_path, 10_000, 0.01, 100.0)
    begun(process)
    while not (tmp_path / "metrics.jsonl").is_file() or History.read(tmp_path).step < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert ended(process) != 0
    assert History.read(tmp_path).step == RunFolder(tmp_path).step == int(load(tmp_path, tiny.lane).seen) >= 5


FULL = """
import resource, signal, sys, torch
from kinformer.lab.train import loop
from kinformer.lab.train.fit import fit
from tests.lab.train import tiny
out, size, loop.EVERY = sys.argv[1], int(sys.argv[2]), 0.0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
torch.manual_seed(0)
try:
    fit(tiny.lane(d=16), tiny.text(4000), steps=20, batch=3, length=9, lr=0.01, out=out, resume=True, measures=1)
except OSError as error:
    print(error)
"""


def test_a_disk_that_takes_no_more_leaves_the_last_save(tmp_path: Path) -> None:
    """The kernel refuses to let a file grow beyond a size, as it does when a disk or a quota is full."""
    trained(tmp_path, 5)
    words = [sys.executable, "-W", "ignore", "-c", FULL, str(tmp_path), "5000"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1 and "File too large; nothing was written" in done.stdout
    assert RunFolder(tmp_path).step == int(load(tmp_path, tiny.lane).seen) == 5
    trained(tmp_path, 20)
    assert RunFolder(tmp_path).step == 20 and numbered(tmp_path) == list(range(1, 21))


def test_slow_saves_are_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a save takes a second and all else almost no time."""
    clock, saved = [0.0], list[int]()

    def slow(run: RunFolder, model: object, step: int, *rest: object) -> None:
        clock[0] += 1.0
        saved.append(step)

    def tick() -> float:
        clock[0] += 1e-3
        return clock[0]

    monkeypatch.setattr(RunFolder, "save", slow)
    monkeypatch.setattr(loop, "monotonic", tick)
    monkeypatch.setattr(loop, "EVERY", 0.0)
    for share, rare in ((0.05, True), (math.inf, False)):
        saved.clear()
        monkeypatch.setattr(loop, "SHARE", share)
        fit(tiny.lane(d=16), tiny.text(4000), steps=20, batch=3, length=9, out=tmp_path / str(share), measures=1)
        steps = sorted({*saved} & {*range(1, 20)})  # the last step is always saved
        assert steps == ([1] if rare else list(range(1, 20)))
