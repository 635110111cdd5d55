"""Real ends of a build: kill -9 while shards are written."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kinformer.lab.datastore.datastore import Datastore, DatastoreError
from tests.lab.datastore.test_datastore import built, contents

ROOT = Path(__file__).parents[3]
LIFE = """
import sys, time
from pathlib import Path
from tests.lab.datastore.test_datastore import built
def told(keys):
    print(keys, flush=True)
    time.sleep(0.01)
built(Path(sys.argv[1]), resume=True, on_progress=told)
"""


def begun(folder: Path) -> subprocess.Popen[str]:
    """A process that builds, and says how many keys it has."""
    words = [sys.executable, "-W", "ignore", "-c", LIFE, str(folder)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def life(folder: Path, lines: int, seconds: float) -> bool:
    """A build that is killed so many seconds after it has said so many lines; whether it had ended before."""
    process = begun(folder)
    assert process.stdout is not None
    has_printed = all(process.stdout.readline() for _ in range(lines))
    time.sleep(seconds if has_printed else 0)
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    ended = process.wait() == 0
    return ended or not has_printed


def test_a_build_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    built(tmp_path / "whole")
    assert not life(tmp_path / "ds", 8, 0)
    assert len(list((tmp_path / "ds").glob("*.keys.safetensors"))) > 1
    with pytest.raises(DatastoreError, match=r"its build is unfinished: continue it with --resume"):
        Datastore.open(tmp_path / "ds")
    built(tmp_path / "ds", resume=True)
    assert contents(tmp_path / "ds") == contents(tmp_path / "whole")


@pytest.mark.prove
def test_however_often_it_is_killed(tmp_path: Path) -> None:
    built(tmp_path / "whole")
    rng, kills = random.Random(0), 0
    for lines in (1, 4, 9, 15, 22):
        kills += not life(tmp_path / "ds", lines, rng.uniform(0, 0.02))
    built(tmp_path / "ds", resume=True)
    assert kills > 2 and contents(tmp_path / "ds") == contents(tmp_path / "whole")


@pytest.mark.prove
def test_a_second_process_is_refused_while_the_first_builds(tmp_path: Path) -> None:
    process = begun(tmp_path / "ds")
    assert process.stdout is not None and process.stdout.readline()
    with pytest.raises(DatastoreError, match="another process is building in"):
        built(tmp_path / "ds", resume=True)
    process.stdout.read()
    assert process.wait() == 0
    process.stdout.close()
    assert len(Datastore.open(tmp_path / "ds")) == 196
