"""The command line `kinformer`: its commands, its error messages and its exit codes."""

import difflib
import errno
import os
import signal
import sys
from collections.abc import Callable, Collection, MutableMapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kinformer import __version__
from kinformer.cli.advise import advise
from kinformer.cli.arena import arena
from kinformer.cli.atlas import atlas
from kinformer.cli.calibrate import calibrate
from kinformer.cli.check import check
from kinformer.cli.claim import claim
from kinformer.cli.classify import classify
from kinformer.cli.compare import compare
from kinformer.cli.convert import convert
from kinformer.cli.cost import cost
from kinformer.cli.datastore import datastore
from kinformer.cli.errors import after_the_first, debugging, ended_by, several, shorten_values
from kinformer.cli.evaluate import evaluate
from kinformer.cli.export import export
from kinformer.cli.fill import fill
from kinformer.cli.forecast import forecast
from kinformer.cli.generate import generate
from kinformer.cli.knn_lm import knn_lm
from kinformer.cli.list import list_parts
from kinformer.cli.look import look
from kinformer.cli.play import play
from kinformer.cli.read import read
from kinformer.cli.score import score
from kinformer.cli.show import show
from kinformer.cli.support import static_source
from kinformer.cli.support.option_checks import saved_config
from kinformer.cli.tour import tour
from kinformer.cli.train import train
from kinformer.core.did_you_mean import ADVICE, explain_synonym, find_synonym
from kinformer.core.keywords import signature
from kinformer.core.missing_path import missing_path
from kinformer.lab.errors import FAILED, INTERRUPTED, WRONG, UserError
from kinformer.lab.train.training_interrupt import TrainingInterrupt

GROUPS = {"datastore"}  # names of groups, which are followed by one of their commands
# libgomp itself uses this number if a process has more threads than cores, and 300,000 otherwise. If other processes
# are running, a waiting thread that spins for so long blocks a core that the other threads need (bench/spin.py).
SPIN_COUNT = "1000"
CLOSE = 0.8  # difflib's ratio from which an unknown option counts as a typing error
COMMANDS_BY_PURPOSE: dict[str, tuple[Callable[..., Any] | typer.Typer, ...]] = {
    "Learn and test": (tour, atlas, list_parts, show, claim, check),
    "Choose, train and compare": (advise, cost, train, compare, arena, evaluate),
    "Use a trained model": (
        *(calibrate, look, generate, read, score, fill, classify, forecast, play),
        *(datastore, knn_lm, convert, export),
    ),
}
NAMES = {list_parts: "list", knn_lm: "knn-lm", datastore: "datastore"}  # others have the names of their functions
ORDER = [
    NAMES.get(item) or str(getattr(item, "__name__", "")) for items in COMMANDS_BY_PURPOSE.values() for item in items
]


class GroupedCommands(TyperGroup):
    """The command `kinformer`, whose help lists the commands by what a user wants to do."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of `COMMANDS_BY_PURPOSE`."""
        return ORDER

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into the help text, under the headings of `COMMANDS_BY_PURPOSE`.

        The text above them names the only option, --version.
        """
        commands: list[tuple[str, Any]] = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        widest = max(len(name) for name, _ in commands)
        for heading in dict.fromkeys(command.rich_help_panel for _, command in commands):
            with formatter.section(heading):
                formatter.write_dl(
                    (f"{name:<{widest}}", command.get_short_help_str(90))
                    for name, command in commands
                    if command.rich_help_panel == heading
                )


app = typer.Typer(
    name="kinformer",
    cls=GroupedCommands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for purpose, functions in COMMANDS_BY_PURPOSE.items():
    for function in functions:
        if isinstance(function, typer.Typer):
            app.add_typer(function, name=NAMES[function], rich_help_panel=purpose)
        else:
            app.command(NAMES.get(function, function.__name__), rich_help_panel=purpose)(function)


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(f"kinformer {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def describe_program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version of kinformer and exit."
        ),
    ] = False,
) -> None:
    """Train, use and study models of the Transformer family.

    \b
    Examples:
        kinformer show llama
        kinformer train llama --data text=stdlib --minutes 3 --out runs/llama
        kinformer generate runs/llama --prompt "def main("
    `kinformer COMMAND --help` explains a command; --version prints the version.
    """


COMMANDS = get_command(app)  # built once, because one process may run several commands


def main() -> None:
    """Run the command line and exit.

    An error is one line on stderr. The exit code is 2 for wrong input and 1 for a failure.
    """
    limit_spinning(os.environ)
    # under torchrun the default handler must stay: a process that waits for others runs no Python handler
    if not several():
        signal.signal(signal.SIGTERM, _end_by)
    sys.exit(run(sys.argv[1:] or ["--help"]))


def limit_spinning(environ: MutableMapping[str, str]) -> None:
    """Let OpenMP threads that wait for work sleep soon, unless the user has configured this.

    Call it before `import torch`. A thread that waits without sleeping takes a core from other threads.

    environ: the environment variables; GOMP_SPINCOUNT is set in them.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & environ.keys():
        environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def _end_by(number: int, frame: FrameType | None) -> None:
    raise TrainingInterrupt("", number)


def run(words: list[str]) -> int:
    """Run a command, and return its exit code.

    words: the command and its arguments, such as ["train", "gpt", "--steps", "3"].
    """
    message, code = _outcome(words)
    message = shorten_values(message, words)
    if (error := _output_error()) is not None:
        message, code = _discard_output(error), FAILED
    return _end(message, code)


def _outcome(words: list[str]) -> tuple[str, int]:
    """Run a command and return its error message, "" for success, and its exit code."""
    if several() and words[0] not in ("train", "--help", "-h", "--version"):
        return f"only train runs under torchrun; run kinformer {words[0]} without torchrun", WRONG
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    if twice := [name for n, name in enumerate(options) if name in options[:n] and name not in _repeatable(words)]:
        return f"{twice[0]} is given twice; give it once", WRONG
    if len(words) == 1 and words[0] in GROUPS:
        words = [*words, "--help"]
    if debugging():
        return _code(COMMANDS(words, prog_name="kinformer", standalone_mode=False))
    try:
        return _code(COMMANDS(words, prog_name="kinformer", standalone_mode=False))
    except UserError as error:
        return str(error), error.code
    except (KeyboardInterrupt, typer.Abort) as stop:
        return "stopped", ended_by(stop)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return missing_path(str(error.filename), "its name is too long"), WRONG
        if isinstance(error, OSError) and _output_error("\n") is not None:
            return str(error), FAILED
        if not hasattr(error, "format_message"):  # errors of the option parser have this method
            raise
        message = error.format_message().replace(": Value error, ", ": ")  # a prefix from pydantic, which Typer uses
        if message.startswith("No such command") and message.endswith("."):
            message = f"{message[:-1]}; {ADVICE.get(words[0], 'write kinformer --help for a list')}"
        return _no_such_option(error, words) or f"{message}{_what_is_missing(error)}", WRONG


def _repeatable(words: list[str]) -> set[str]:
    """Return the options that the command in the words takes several times, such as --grid."""
    command: Any = COMMANDS
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is not None and not hasattr(command, "commands"):
            return {name for option in command.params if getattr(option, "multiple", False) for name in option.opts}
        if command is None:
            break
    return set()


def _output_error(text: str = "") -> OSError | None:
    """Flush standard output, with `text` at its end; return the error, or None for success.

    A failed write may have lost its text, so only another write meets the error again. Pass `text` in that case.
    """
    try:
        if sys.stdout is not None:  # it is None if the shell closed it
            if text:
                sys.stdout.write(text)
            sys.stdout.flush()
    except OSError as error:
        return error
    return None


def _discard_output(error: OSError) -> str:
    """Discard the unwritten rest of standard output and return the message for its error."""
    with open(os.devnull, "w") as nothing:  # else Python tries to write the rest at exit, and prints a traceback
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # a reader such as `head` has stopped reading
        return ""
    return f"cannot write to standard output: {error.strerror}; free space there, or write the output elsewhere"


def _what_is_missing(error: Any) -> str:
    """Return the help text of a missing option or argument, as the end of the error message; "" for other errors."""
    param = getattr(error, "param", None) if type(error).__name__ == "MissingParameter" else None
    return f" Expected: {help_text}" if (help_text := getattr(param, "help", None)) else ""


def _no_such_option(error: Any, words: list[str]) -> str:
    """Return the message for an unknown option that has another name here or is a keyword; "" for other errors."""
    if type(error).__name__ != "NoSuchOption" or error.ctx is None:
        return ""
    params, problem = error.ctx.command.params, f"No such option: {error.option_name}"
    options = {opt.lstrip("-").replace("-", "_"): opt for param in params for opt in param.opts if opt.startswith("--")}
    name = error.option_name.lstrip("-").replace("-", "_")
    synonym = name if name in options else find_synonym(name, options)
    if synonym is not None:
        return f"{problem}; use {options[synonym]} instead{explain_synonym(name, synonym)}"
    if any(param.name == "keywords" for param in params):
        keywords = _member_keywords(words)
        keyword = name if name in keywords else find_synonym(name, keywords)
        if keyword is not None:
            return f"{problem}; keywords of a member have no dashes: write {keyword}=VALUE"
    if name in ADVICE:
        return f"{problem}; {ADVICE[name]}"
    if name in ("model", "model_name", "model_name_or_path", *(param.name for param in params)):
        first = next((param.name for param in params if param.param_type_name == "argument"), "first argument")
        return f"{problem}; the {first} is given without an option, as the first word"
    if difflib.get_close_matches(name, options, n=1, cutoff=CLOSE):
        return ""
    return f"{problem}; `{error.ctx.command_path} --help` lists the options"


def _member_keywords(words: list[str]) -> Collection[str]:
    """Return the keywords of the member that a command names, or that made the run it names; empty for neither."""
    for word in words[1:]:
        stub = static_source.member_stub(word) or static_source.member_stub(saved_config(Path(word)).get("member", ""))
        if stub is not None:
            return signature(stub).parameters
    return ()


def _code(code: object) -> tuple[str, int]:
    if code == INTERRUPTED:
        return "stopped", INTERRUPTED
    return "", code if isinstance(code, int) else 0


def _end(message: str, code: int) -> int:
    if not message:
        return code
    if code == WRONG:
        after_the_first()
    print(f"kinformer: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
