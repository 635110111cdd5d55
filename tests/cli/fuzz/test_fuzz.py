"""Command lines and spoilt files, drawn by a seed: no traceback, no harm, no exit 0 on what was not done."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.fuzz.judge import faults
from tests.cli.fuzz.lines import Lines
from tests.cli.fuzz.mutants import Mutants
from tests.cli.fuzz.real import spoken
from tests.cli.fuzz.world import BESIDE, Seen, Watched, make, see

FEW, MANY, REAL = 50, 5_000, 50
BATCH = 50  # seeds of a test
ROOT = Path(__file__).parents[3]
LONG = pytest.mark.prove


def batches(first: int, end: int) -> range:
    """The first seed of each test."""
    return range(first, end, BATCH)


EVERY = [*batches(0, FEW), *(pytest.param(first, marks=LONG) for first in batches(FEW, MANY))]


class World:
    """What was there before, a place to work in, and one for what is spoilt."""

    def __init__(self, home: Path) -> None:
        self.root, self.work, self.place = home / "there", home / "work", home / "place"
        make(self.root)
        self.pristine = Path(shutil.copytree(self.root, home / "pristine"))
        self.work.mkdir()
        self.watched, self.written = Watched(self.root), Watched(self.work)

    def faults(self, words: list[str], outcome: Seen) -> list[str]:
        """What is wrong with what a command did, to things that were there too; what it wrote is taken away."""
        harmed = self.watched.harmed()
        may = [name for name in harmed if outcome.code == 0 and changes(words, self.root / name)]
        problems = [*faults(words, outcome), *(f"harmed {name}" for name in harmed if name not in may)]
        if outcome.code == 2:
            problems += [f"was refused, and left {name}" for name in self.watched.added() + self.written.added()]
        self.watched.tidy()
        self.watched.allowed(may, self.pristine)
        self.written.tidy()
        return problems


def changes(words: list[str], file: Path) -> bool:
    """Is it what a command is for to change this file?"""
    named = [path for word in words if (path := Path(word)) in (file, *file.parents) and path.is_absolute()]
    if {"knn-lm", "calibrate"} & set(words):
        return bool(named) and file.name in BESIDE
    if "datastore" in words:
        return bool(named) and bool({"index", "--append", "--resume", "--index"} & set(words))
    return bool(named) and "--overwrite" in words


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(autouse=True)
def at_work(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(world.work)
    yield


@pytest.mark.parametrize("first", EVERY)
def test_lines_of_words(world: World, first: int) -> None:
    done, problems = 0, list[str]()
    for seed in range(first, first + BATCH):
        words = Lines(world.root, seed).draw()
        outcome = see(words)
        done += outcome.code == 0
        problems += [f"seed {seed}, {words}: {problem}" for problem in world.faults(words, outcome)]
    assert not problems, "\n".join(problems)
    # of 50 lines 9 go through on average, and 2 or fewer by chance in one batch of a hundred
    assert done, "all lines are refused, so little was tried"


@pytest.mark.prove
@pytest.mark.parametrize("first", EVERY)
def test_spoilt_files(world: World, first: int) -> None:
    done, problems = 0, list[str]()
    for seed in range(first, first + BATCH):
        damage, words = Mutants(world.root, world.place, Path(os.environ["KINFORMER_CACHE"]), seed).draw()
        spoilt = Watched(world.place)
        outcome = see(words)
        done += outcome.code == 2
        new_problems = world.faults(words, outcome)
        if outcome.code == 2 or words[0] != "train":
            new_problems += [f"changed {name}" for name in spoilt.harmed() + spoilt.added()]
        problems += [f"seed {seed}, {damage}, {words}: {problem}" for problem in new_problems]
    assert not problems, "\n".join(problems)
    assert done > BATCH / 2, "most of what was spoilt was read as if nothing were"


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(MANY, MANY + REAL))
def test_real_commands(world: World, seed: int) -> None:
    words = Lines(world.root, seed).draw()
    outcome, silence = spoken(words)
    assert not world.faults(words, outcome), (words, outcome)
    assert silence <= 1, f"{words}: {silence:.1f} seconds of work without a word"


@pytest.mark.prove
def test_what_is_imported_while_sizes_are_judged_has_numbers() -> None:
    code = """
from kinformer.cli.support.memory_limits import refuse_too_large
from kinformer.lab.member_choice import spelled
refuse_too_large(spelled("gpt(d=8, depth=1, heads=2, pattern=Causal() & Band(2))"), 1, 8)
from kinformer.nn.patterns.since import EXAMPLES
print({one.first.device.type for one in EXAMPLES})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "{'cpu'}\n"


def test_faults_are_found(world: World) -> None:
    for outcome in (
        Seen(-1, "", "", ValueError("no")),
        Seen(2, "", ""),
        Seen(2, "", "kinformer: a\nkinformer: b\n"),
        Seen(0, "", ""),
        Seen(1, "", "Traceback (most recent call last):\nkinformer: a\n"),
        Seen(3, "", "kinformer: a\n"),
    ):
        assert list(faults(["list"], outcome)), outcome
    assert not list(faults(["list"], Seen(2, "", "kinformer: there is no such kind\n")))
    assert list(faults(["train", "gpt", "--out", "nowhere"], Seen(0, "trained", "")))
    assert list(faults(["evaluate", "gpt"], Seen(0, "gpt: nan bits per byte; 3 predictions", "")))
    assert not list(faults(["evaluate", "gpt"], Seen(0, "gpt: 1.5 bits per byte; 3 predictions", "")))
    (world.root / "text").write_bytes(b"other")
    assert world.watched.harmed() == ["text"]
    make_again(world)


def make_again(world: World) -> None:
    from tests.cli.fuzz.world import TEXT

    (world.root / "text").write_bytes(TEXT)
    assert not world.watched.harmed()
