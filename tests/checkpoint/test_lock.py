"""Locks: one holder at a time, released however a process ends, and none needed where there are no locks."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinformer.checkpoint.lock import LockedError, check_unlocked, file_lock

HOLD = """
import sys, time
from pathlib import Path
from kinformer.checkpoint.lock import file_lock
with file_lock(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of a file."""
    words = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(words, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_kill_9_releases_a_lock_and_leaves_nothing_to_mend(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as process:
        for look in (lambda: file_lock(path, wait=False).__enter__(), lambda: check_unlocked(path)):
            with pytest.raises(LockedError) as refused:
                look()
            assert refused.value.holder == f"process {process.pid}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert path.exists()
        check_unlocked(path)
        with file_lock(path, wait=False) as has_locks:
            assert has_locks
    assert not path.exists()


def test_those_who_wait_hold_it_one_after_the_other(tmp_path: Path) -> None:
    """Each holder removes the file, so who waited for it must not take the removed file for the lock."""
    inside, most, turns = [0], [0], [0]

    def work() -> None:
        for _ in range(20):
            with file_lock(tmp_path / "lock", wait=True):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(1e-4)
                turns[0] += 1
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], turns[0]) == (1, 120) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_holds_nothing(
    tmp_path: Path, wait: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr("kinformer.checkpoint.lock.fcntl.flock", refused)
    with file_lock(tmp_path / "lock", wait=wait) as first, file_lock(tmp_path / "lock", wait=wait) as second:
        check_unlocked(tmp_path / "lock")
    assert not first and not second and not list(tmp_path.iterdir())


def test_the_file_of_another_user_is_locked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be read and not written; a holder of it must still be seen, and kept out."""
    path, opened = tmp_path / "lock", os.open
    path.write_text("7 elsewhere")

    def unwritable(place: Path, flags: int, *modes: int) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "not yours", str(place))
        return opened(place, flags, *modes)

    monkeypatch.setattr("kinformer.checkpoint.lock.os.open", unwritable)
    with file_lock(path, wait=False) as has_locks:
        assert has_locks
        with pytest.raises(LockedError, match="process 7 on elsewhere"):
            check_unlocked(path)
        with pytest.raises(LockedError), file_lock(path, wait=False):
            pass
    with pytest.raises(PermissionError), file_lock(tmp_path / "none", wait=False):
        pass


def test_a_look_at_a_lock_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lock for a moment, while another process tries to take it."""
    flock, tried = fcntl.flock, list[int]()

    def busy_at_first(file: int, form: int) -> None:
        tried.append(form)
        if len(tried) == 1:
            raise BlockingIOError
        flock(file, form)

    monkeypatch.setattr("kinformer.checkpoint.lock.fcntl.flock", busy_at_first)
    with file_lock(tmp_path / "lock", wait=False) as has_locks:
        assert has_locks and len(tried) == 2
