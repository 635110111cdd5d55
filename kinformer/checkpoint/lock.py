"""File locks that the operating system releases when the process that holds them ends."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}  # a file system without locks

LOOK = 0.05  # seconds until the second try for a lock


class LockedError(Exception):
    """Error for a file that another process has locked.

    holder: name of the process; "" if unknown.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def file_lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock of a file within a `with` block; the file is created, and removed at the end.

    Other processes and threads cannot hold the lock at the same time. A file of another user can be locked too,
    although it cannot be written. The context manager yields True, or False if the file system has no locks.

    path: lock file.
    wait: True waits until the lock is free, False raises an error if it is held.

    Errors: LockedError if the file is locked and `wait` is False; OSError if the file cannot be created.
    """
    file = None
    while file is None:
        file = _lock(path, wait)
    if file < 0:
        yield False
        return
    try:
        with suppress(OSError):  # a full disk, or the file of another user
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()} {socket.gethostname()}".encode(), 0)
        yield True
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def check_unlocked(path: Path) -> None:
    """Raise LockedError if a process holds the lock of a file.

    path: lock file.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        _flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(file)


def _lock(path: Path, wait: bool) -> int | None:
    """Open and lock a file; -1 if the file system has no locks, None if the last holder has removed the file."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        if not path.exists():
            raise
        file = os.open(path, os.O_RDONLY)  # another user's file can be locked if it can be read
    try:
        has_locks = _flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if has_locks and _is_at(file, path):
            locked_file, file = file, -1
            return locked_file
        if not has_locks:
            path.unlink(missing_ok=True)
        return None if has_locks else -1
    finally:
        if file >= 0:
            os.close(file)


def _flock(file: int, form: int) -> bool:
    """Lock an open file; False if the file system has no locks. Raises LockedError if another process holds it."""
    for last in (False, True):
        try:
            fcntl.flock(file, form)
        except BlockingIOError:
            if last:
                raise LockedError(_holder(file)) from None
            time.sleep(LOOK)  # `check_unlocked` in another process may hold the lock for a moment
        except OSError as error:
            if error.errno in NO_LOCKS:
                return False
            raise
        else:
            break
    return True


def _is_at(file: int, path: Path) -> bool:
    """True if the path still names this open file."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(file: int) -> str:
    """Return the process that a lock file names, with its machine if it is a different one."""
    number, _, machine = os.pread(file, 256, 0).decode(errors="replace").partition(" ")
    if not number:
        return ""
    return f"process {number}" + (f" on {machine}" if machine != socket.gethostname() else "")
