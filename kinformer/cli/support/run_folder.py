"""Checks of the folder of a training run: locks, damaged files, other models, first weights."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kinformer.bridge.hf_folder import is_hf_folder
from kinformer.bridge.load import load
from kinformer.checkpoint.atomic_files import crc32
from kinformer.checkpoint.checkpoint import built_by, find_conflict
from kinformer.checkpoint.model_files import BEST, WEIGHTS, CheckpointError
from kinformer.cli.errors import print_warnings, suggest_command
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

ANEW = "--overwrite starts again"
DERIVED = {  # files that depend on weights, and the commands that make them
    "exits.json": ("calibrate", "--data", "KIND=PLACE"),
    "knn-lm.json": ("knn-lm", "--datastore", "STORE", "--data", "text=PATH"),
}


def refuse_damaged(folder: Path, advice: str | None = None) -> None:
    """Refuse to resume a run if its weights cannot be read.

    folder: the folder of the run.
    advice: advice for the user at the end of the message; the text of `advice_instead_of_resuming` if None.

    The run is not simply started again, because that would overwrite its remaining files. Errors: UserError.
    """
    if (damaged := RunFolder(folder).find_damage()) is not None:
        raise UserError(f"{damaged}; {advice or advice_instead_of_resuming(folder)}")


def advice_instead_of_resuming(folder: Path) -> str:
    """Return advice for the user whose run cannot be resumed because a file is damaged.

    folder: the folder of the run.
    """
    best = folder / BEST
    start = f"--from {best} with another --out starts from the best weights, " if best.is_dir() else ""
    return f"{start}{ANEW}"


@contextmanager
def with_advice(advice: str) -> Iterator[None]:
    """Enter a context that adds advice to a UserError about a damaged file of a run.

    advice: the text to add.
    """
    try:
        yield
    except UserError as error:
        if not isinstance(error.__cause__, CheckpointError):
            raise
        raise UserError(f"{error}; {advice}", error.code) from error


@contextmanager
def warn_of_outdated_files(folder: Path) -> Iterator[None]:
    """Enter a context that reports results of a run which become outdated by new weights.

    folder: the folder of the run. The results are files such as exits.json, which a command made for the earlier
        weights.
    """
    before = _checksum(folder)
    try:
        yield
    finally:
        if before not in (None, _checksum(folder)):
            for name, (command, *options) in DERIVED.items():
                if (folder / name).is_file():
                    advice = f"Run `{suggest_command(command, folder, *options)}` to make it again"
                    print(f"{folder / name} is outdated: it belongs to the earlier weights. {advice}", file=sys.stderr)


def _checksum(folder: Path) -> int | None:
    """The checksum of the weights in a folder; None if there are none."""
    path = folder / WEIGHTS
    return crc32(path) if path.is_file() else None


@contextmanager
def claimed_folder(out: Path, group: SingleProcess = SINGLE_PROCESS, *, within: bool = False) -> Iterator[None]:
    """Enter a context in which a folder is locked, so that no other command trains there.

    out: the folder.
    group: the processes that train together.
    within: True also locks the subfolders.

    Errors: UserError if another command trains there already.
    """
    with ExitStack() as stack:
        with from_user(FolderInUse), print_warnings():
            stack.enter_context(lock_folder(out, group, within=within))
        yield


def make_folder(out: Path) -> None:
    """Create the folder of a run, and check that files can be written there.

    out: the folder.

    Call it before a long computation, which would otherwise fail at its end. Errors: UserError.
    """
    with from_user(OSError):
        refuse_file(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
            (out / ".writable").touch()
            (out / ".writable").unlink()
        except OSError as error:
            raise OSError(f"cannot write to {out}: {error.strerror}") from error


def refuse_occupied(folder: Path, model: Any, overwrite: bool, resume: bool = False) -> None:
    """Refuse a folder whose model a training would overwrite, unless `overwrite` is true.

    folder: the folder.
    model: the model to train.
    overwrite: True if the folder may be overwritten.
    resume: True if the run in the folder is resumed; its files must then be complete and readable.

    Errors: UserError.
    """
    if resume:
        refuse_damaged(folder)
        if (missing := RunFolder(folder).missing_trainer()) is not None:
            raise UserError(f"{missing}; --from {folder} with another --out starts from its weights, {ANEW}")
    other = find_conflict(folder, model)
    if other is not None and not overwrite:
        raise UserError(f"{folder} holds {other}, which would be overwritten. Give another --out, or --overwrite")


def load_start(folder: Path | None, function: Callable[..., Any], model: Any, data: Data) -> None:
    """Load the weights in a folder into a new model.

    folder: the folder of the trained model; if None, the model keeps its initial weights.
    function: the member that built the new model.
    model: the new model.
    data: the training data; it must have the same tokens as the data of the trained model.

    Errors: UserError if the weights do not fit, or if the new model has frozen weights and no folder is given.
    """
    if folder is None:
        refuse_frozen(name_of(function), model, " give --from a folder of trained weights, or do not freeze weights")
    else:
        with from_user(ValueError, OSError), print_warnings():
            is_own = folder.suffix.lower() != ".gguf" and not is_hf_folder(folder)
            same = is_own and built_by(folder) == name_of(function)
            trained = load(folder, member=function if same else None)
            refuse_other_tokens(trained, data)
            carry_weights(trained, model, str(folder))


def refuse_frozen(name: str, model: Any, advice: str) -> None:
    """Refuse a new model with frozen weights (weights that are not trained), which would stay random.

    name: name of the member, for the message.
    model: the new model.
    advice: end of the message, which says what to do instead.

    Errors: UserError.
    """
    weights = list(model.parameters())
    still = sum(not weight.requires_grad for weight in weights)
    if still:
        record = getattr(model, "member", None)
        word = f"frozen={as_word(record.keywords['frozen'])}" if record and "frozen" in record.keywords else name
        raise UserError(
            f"{word} trains {len(weights) - still} of {len(weights)} weights, but the others are frozen and would "
            f"stay random;{advice}"
        )
