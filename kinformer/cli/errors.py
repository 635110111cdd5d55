"""Errors and warnings of commands: one line on stderr and an exit code, without a traceback."""

import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from kinformer.core.missing_path import missing_path
from kinformer.lab.errors import UserError

SECONDS = 5.0
LONGEST = 80  # characters of a value in a message
LONGEST_NAME = 255  # characters of a file name


def shorten_values(message: str, words: Iterable[str] = ()) -> str:
    """Cut long values in a message to 80 characters, so that a message stays one readable line.

    A value is cut in its middle. The path of a file is kept if the file or its folder exists, because the user may have
    to copy it.

    message: the message.
    words: words of the command line, which are cut even if they contain spaces.
    """
    pieces = {" ".join(piece.split()) for word in words for piece in (word, word.partition("=")[2])}
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) > LONGEST and " " in piece:
            message = message.replace(piece, _cut(piece))
    return re.sub(rf"\S{{{LONGEST + 1},}}", lambda match: _cut(match[0]), message)


def _cut(value: str) -> str:
    """Return a value with dots in place of its middle; a path in an existing folder stays whole."""
    path = (value.partition("=")[2] or value).partition(",")[0]  # data such as text=PATH,documents=blank too
    folder, name = os.path.split(path.strip("'\"`.,;:()"))
    if len(name) <= LONGEST_NAME and os.path.isdir(folder):
        return value
    return f"{value[: LONGEST // 2]}...{value[3 - LONGEST // 2 :]}"


def ended_by(stop: BaseException) -> int:
    """Return the exit code of a command that a signal stopped: 128 plus the number of the signal.

    stop: a KeyboardInterrupt or an exception with the `number` of the signal.
    """
    return 128 + getattr(stop, "number", signal.SIGINT)


def refuse_useless(context: Any, why: str, *names: str, instead: str = "") -> None:
    """Raise UserError for an option that the user gave although it has no effect.

    context: Typer's context of the command.
    why: the condition under which the option has no effect, such as "with --beam".
    names: parameter names of the options that have no effect under this condition.
    instead: advice to the user that gives the options an effect, such as "name a claim"; "" for none.
    """
    advice = f"leave it out, or {instead}" if instead else "leave it out"
    spelled = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"{spelled[name]} has no effect {why}; {advice}")


def suggest_command(command: str, *words: object, member: str | None = None) -> str:
    """Return a command that a user can copy, such as "kinformer generate runs/xl --prompt TEXT".

    command: the name of the command, such as "datastore search".
    words: its arguments and options; they are quoted for a shell if necessary.
    member: the user's own member that built the model, as FILE.py:NAME, which the command then needs too; None for a
        member of the library.
    """
    own = [] if member is None else ["--member", member]
    return shlex.join(["kinformer", *command.split(), *map(str, words), *own])


def refuse_no_folder(out: Path, option: str = "--out") -> None:
    """Raise UserError if an output file cannot be created: it is a folder, or its folder does not exist.

    out: the output file.
    option: the option that names the file, for the message.
    """
    if out.is_dir():
        raise UserError(f"cannot write to {out}: it is a folder; {option} must name a file")
    if not out.absolute().parent.is_dir():
        raise UserError(missing_path(out.parent, f"{option} must name a file in an existing folder"))


def refuse_existing(path: Path) -> None:
    """Raise UserError if a file or folder that a command would create already exists.

    path: the file or folder.
    """
    if path.exists():
        raise UserError(f"{path} already exists; give another name, or remove it")


@contextmanager
def print_warnings() -> Iterator[None]:
    """Enter a context in which each distinct warning is printed once, as one line on stderr."""
    printed: set[str] = set()

    def note(message: Warning | str, category: type[Warning], *_: object) -> None:
        text = " ".join(str(message).split())
        if text not in printed:
            print(f"warning: {shorten_values(text)}", file=sys.stderr)
        printed.add(text)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = note  # type: ignore[assignment]
        yield


def several() -> bool:
    """Return True if torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def after_the_first() -> None:
    """Wait 5 seconds in all processes of torchrun except the first, to print a shared error once.

    torchrun ends all processes when the first one fails. So a process that still runs after the wait has an error that
    the first process does not have, and prints it.
    """
    if several() and os.environ["RANK"] != "0":
        sleep(SECONDS)


def debugging() -> bool:
    """Return True if the user has set KINFORMER_DEBUG=1, which prints the traceback of an error."""
    return os.environ.get("KINFORMER_DEBUG") == "1"
