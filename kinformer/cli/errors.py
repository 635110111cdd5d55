"""How a command fails: one line on stderr and an exit code, never a traceback for what a user can mend."""

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from kinformer.core.missing_path import missing_path
from kinformer.lab.errors import UserError

SECONDS = 5.0


def ended_by(stop: BaseException) -> int:
    """The exit code of a command that a signal stopped: 128 and its number."""
    return 128 + getattr(stop, "number", signal.SIGINT)


def refuse_useless(context: Any, why: str, *names: str, instead: str = "") -> None:
    """Refuse options that the user wrote although they have no effect, for a reason such as "with --beam".

    instead: what the user can do so that the options have an effect.
    """
    advice = f"leave it out, or {instead}" if instead else "leave it out"
    spelled = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"{spelled[name]} has no effect {why}; {advice}")


def refuse_no_folder(out: Path, option: str = "--out") -> None:
    """UserError for a file to write whose folder is not there, or that is a folder."""
    if out.is_dir():
        raise UserError(f"cannot write to {out}: it is a folder; {option} names a file")
    if not out.absolute().parent.is_dir():
        raise UserError(missing_path(out.parent, f"{option} names a file in a folder that is there"))


def refuse_existing(path: Path) -> None:
    """UserError for a file or folder to be made that is there already."""
    if path.exists():
        raise UserError(f"{path} is there already; give another name, or take it away")


@contextmanager
def print_warnings() -> Iterator[None]:
    """What the library warns of goes to stderr, a line each, once."""
    printed: set[str] = set()

    def note(message: Warning | str, category: type[Warning], *_: object) -> None:
        text = " ".join(str(message).split())
        if text not in printed:
            print(f"warning: {text}", file=sys.stderr)
        printed.add(text)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = note  # type: ignore[assignment]
        yield


def several() -> bool:
    """Is this one of the processes that torchrun started?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def after_the_first() -> None:
    """Let the first of several processes say what all of them meet: torchrun ends the others once one has failed.

    A process that is still there then has met it alone, and goes on to say it.
    """
    if several() and os.environ["RANK"] != "0":
        sleep(SECONDS)


def debugging() -> bool:
    """Whether tracebacks are wanted: KINFORMER_DEBUG=1."""
    return os.environ.get("KINFORMER_DEBUG") == "1"
