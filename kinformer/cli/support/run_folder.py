"""The folder of a run: claimed, made, refused where it is occupied or damaged, and its weights to start from."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import crc32
from kinformer.checkpoint.checkpoint import built_by, find_conflict, load
from kinformer.checkpoint.model_files import BEST, WEIGHTS, CheckpointError
from kinformer.cli.errors import print_warnings
from kinformer.cli.support.option_checks import refuse_file
from kinformer.core.keyword_conditions import as_word
from kinformer.core.keywords import name_of
from kinformer.lab.data.data import Data
from kinformer.lab.data.data_fits_model import refuse_other_tokens
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.train.distributed import SINGLE_PROCESS, SingleProcess
from kinformer.lab.train.folder_lock import FolderInUse, lock_folder
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.training_stages import carry_weights

ANEW = "--overwrite begins anew"
DERIVED = {"exits.json": "calibrate", "knn-lm.json": "knn-lm"}  # files made of weights, and the commands that do


def refuse_damaged(folder: Path, advice: str | None = None) -> None:
    """Refuse to resume a run whose weights cannot be read, because a new start would overwrite what is left of them.

    advice: what to do instead; that of `advice_instead_of_resuming` unless given.
    """
    if (damaged := RunFolder(folder).find_damage()) is not None:
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


@contextmanager
def warn_of_outdated_files(folder: Path) -> Iterator[None]:
    """Name the files that commands made of weights which are replaced while the context is open."""
    before = _checksum(folder)
    try:
        yield
    finally:
        if before not in (None, _checksum(folder)):
            for name, command in DERIVED.items():
                if (folder / name).is_file():
                    advice = f"`kinformer {command} {folder}` makes it anew"
                    print(f"{folder / name} is of the weights that were there before; {advice}", file=sys.stderr)


def _checksum(folder: Path) -> int | None:
    """Of the weights in a folder; None where there are none."""
    path = folder / WEIGHTS
    return crc32(path) if path.is_file() else None


@contextmanager
def claimed_folder(out: Path, group: SingleProcess = SINGLE_PROCESS, *, within: bool = False) -> Iterator[None]:
    """Claim a folder, with `within` also its subfolders, for a command; UserError if another process trains there."""
    with ExitStack() as stack:
        with from_user(FolderInUse), print_warnings():
            stack.enter_context(lock_folder(out, group, within=within))
        yield


def make_folder(out: Path) -> None:
    """Make a folder and try to write there, before anything long begins."""
    with from_user(OSError):
        refuse_file(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
            (out / ".writable").touch()
            (out / ".writable").unlink()
        except OSError as error:
            raise OSError(f"cannot write to {out}: {error.strerror}") from error


def refuse_occupied(folder: Path, model: Any, overwrite: bool, resume: bool = False) -> None:
    """UserError where the folder holds a model, which a training would overwrite, and nobody said that it may."""
    if resume:
        refuse_damaged(folder)
        if (missing := RunFolder(folder).missing_trainer()) is not None:
            raise UserError(f"{missing}; --from {folder} with another --out starts from its weights, {ANEW}")
    other = find_conflict(folder, model)
    if other is not None and not overwrite:
        raise UserError(f"{folder} holds {other}, which would be overwritten; give another --out, or --overwrite")


def load_start(folder: Path | None, function: Callable[..., Any], model: Any, data: Data) -> None:
    """Give a model the weights in a folder, if one is named; UserError where they are of another or of other tokens."""
    if folder is None:
        refuse_frozen(name_of(function), model, " give --from a folder of trained weights, or leave it out")
    else:
        with from_user(ValueError, OSError), print_warnings():
            trained = load(folder, member=function if built_by(folder) == name_of(function) else None)
            refuse_other_tokens(trained, data)
            carry_weights(trained, model, str(folder))


def refuse_frozen(name: str, model: Any, advice: str) -> None:
    """Refuse a new model with frozen weights, because these would stay random."""
    weights = list(model.parameters())
    still = sum(not weight.requires_grad for weight in weights)
    if still:
        record = getattr(model, "member", None)
        word = f"frozen={as_word(record.keywords['frozen'])}" if record and "frozen" in record.keywords else name
        raise UserError(
            f"{word} trains {len(weights) - still} of {len(weights)} weights, but the others would stay random;{advice}"
        )
