"""Damaged files of a run: what its error says to do instead of resuming it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinformer.checkpoint.checkpoint import CheckpointError
from kinformer.checkpoint.kept import BEST
from kinformer.lab.errors import UserError
from kinformer.lab.train.run import Run

ANEW = "--overwrite begins anew"


def refuse_damaged(folder: Path, advice: str | None = None) -> None:
    """Refuse to resume a run whose weights cannot be read, because a new start would overwrite what is left of them.

    advice: what to do instead; that of `instead_of` unless given.
    """
    if (damaged := Run(folder).damaged()) is not None:
        raise UserError(f"{damaged}; {advice or advice_instead_of_resuming(folder)}")


def advice_instead_of_resuming(folder: Path) -> str:
    """What to do instead of resuming a run with a damaged file."""
    best = folder / BEST
    start = f"--from {best} with another --out starts from the best, " if best.is_dir() else ""
    return f"{start}{ANEW}"


@contextmanager
def with_advice(advice: str) -> Iterator[None]:
    """Add advice to the UserError for a damaged file of a run."""
    try:
        yield
    except UserError as error:
        if not isinstance(error.__cause__, CheckpointError):
            raise
        raise UserError(f"{error}; {advice}", error.code) from error
