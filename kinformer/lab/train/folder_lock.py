"""Lock on a run folder, or also on its subfolders, so that only one process trains there."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kinformer.checkpoint.lock import LockedError, check_unlocked, file_lock
from kinformer.core.warn import warn
from kinformer.lab.train.distributed import SINGLE_PROCESS, SingleProcess

LOCK, LOCK_WITHIN = ".kinformer.lock", ".kinformer.within.lock"
TRIES = 5  # to lock a folder that another process removes
LOCKS = (LOCK, LOCK_WITHIN)
DEPTH = 2  # a comparison trains in MEMBER/SEED, phases in phase-N


class FolderInUse(ValueError):
    """Error for a folder into which another process trains; the message is one line.

    folder: the folder.
    holder: name of the other process; "" if unknown.
    """

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            f"{folder} is being trained by {holder or 'another process'}; wait until it ends, stop it, or give another "
            "folder"
        )


@contextmanager
def lock_folder(folder: Path, group: SingleProcess = SINGLE_PROCESS, *, within: bool = False) -> Iterator[None]:
    """Lock a folder for a training; in a group of processes the first process holds the lock.

    The system releases the lock when the process ends, even by kill -9. A missing folder is created, and removed again
    if it stays empty. If the file system has no locks, a warning says so and nothing is locked. A folder that cannot be
    written is not locked; the training itself reports that.

    folder: the folder.
    group: the processes of the training.
    within: lock its subfolders too, for a comparison or the phases of a training.

    Errors: FolderInUse, in every process of the group, if another process holds one of the folders.
    """
    with ExitStack() as stack:
        refusal: FolderInUse | OSError | None = None
        if not group.rank:
            try:
                stack.enter_context(_lock(folder, within))
            except (FolderInUse, OSError) as error:
                refusal = error
        if group.reduce_max(float(refusal is not None)):
            raise refusal or FolderInUse(folder, "")
        yield


@contextmanager
def _lock(folder: Path, within: bool) -> Iterator[None]:
    """Hold the locks of a folder in this context; without lock support, warn and hold none."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            for name in LOCKS if within else (LOCK,):
                if not _enter(stack, folder, name):
                    warn(f"cannot lock {folder}: its file system has no locks. Run one training there at a time")
                    break
            # after locking, so that of two processes that start together at least one sees the other
            for around in folder.absolute().parents:
                _check_unlocked(around, LOCK_WITHIN)
            for depth in range(1, DEPTH + 1) if within else ():
                for path in sorted(folder.glob("*/" * depth + LOCK)):
                    _check_unlocked(path.parent, LOCK)
            yield
    finally:
        with suppress(OSError):
            for place in missing:
                place.rmdir()


def _enter(stack: ExitStack, folder: Path, name: str) -> bool:
    """Lock a folder until the stack closes; return False on a file system without locks."""
    for _ in range(TRIES):
        try:
            return stack.enter_context(file_lock(folder / name, wait=False))
        except LockedError as error:
            raise FolderInUse(folder, error.holder) from None
        except FileNotFoundError:  # another process made the folder, was refused and removed it
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # the folder cannot be written
            break
    return True


def _check_unlocked(folder: Path, name: str) -> None:
    """Raise FolderInUse if a process holds a lock in the folder."""
    try:
        check_unlocked(folder / name)
    except LockedError as error:
        raise FolderInUse(folder, error.holder) from None
