"""Commands that messages and help texts suggest can be parsed as they are printed, with their placeholders filled."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinformer.cli.__main__ import COMMANDS
from tests.cli.folders import folder

CLI = Path(__file__).parents[2] / "kinformer/cli"
FILES = [
    *(CLI / f"{name}.py" for name in ("train", "compare", "cost", "advise", "options")),
    *sorted((CLI / "support").glob("train*.py")),
    *(
        CLI / f"support/{name}.py"
        for name in ("trials", "comparison", "run_folder", "grid", "foreign_files", "loggers")
    ),
    *(CLI / f"support/{name}.py" for name in ("memory_limits", "cost_table", "advice_table", "guess_warning")),
    *sorted((CLI.parent / "lab/advise").glob("*.py")),
    *sorted((CLI.parent / "lab/compare").glob("*.py")),
    CLI.parent / "pages/comparison_results.py",
]
FILLED = {
    "MEMBER": "gpt",
    "KIND": "text",
    "key=value": "depth=2",
    "DATA": "text=stdlib",
    "TEXT": "a",
    "{name}": "gpt",
    "PATH": "text",
    "FILE.tsv": "pairs.tsv",
}
FOLDERS = ("{folder}", "{place}", "STORE")


def strings(file: Path) -> Iterator[str]:
    """The strings of a file, with the expressions of an f-string in braces, and its examples of commands."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.JoinedStr):
            pieces = [
                piece.value if isinstance(piece, ast.Constant) else "{" + ast.unparse(piece.value) + "}"  # type: ignore[attr-defined]
                for piece in node.values
            ]
            yield "".join(map(str, pieces))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def suggested(file: Path) -> Iterator[str]:
    for text in strings(file):
        yield from re.findall(r"`(kinformer [^`]+)`", " ".join(text.split()))
        joined = re.sub(r"\\\n +", "", text)  # a command that goes on in the next line
        yield from re.findall(r"^ *(kinformer .*)$", joined, re.M)


COMMANDS_OF_FILES = sorted({command for file in FILES for command in suggested(file)})


def test_commands_are_found() -> None:
    assert any("--grid" in command for command in COMMANDS_OF_FILES), "an example of a docstring"
    assert any("generate {place} --prompt" in command for command in COMMANDS_OF_FILES), "a message"


@pytest.mark.parametrize("command", COMMANDS_OF_FILES)
def test_a_suggested_command_is_parsed(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = folder(tmp_path / "model", "gpt")
    for name in ("text", "pairs.tsv"):
        (tmp_path / name).write_text("a\tb\n")
    for placeholder, value in {**dict.fromkeys(FOLDERS, model), **FILLED}.items():
        command = re.sub(rf"(?<![\w-]){re.escape(placeholder)}(?!\w)", value, command)
    _, name, *words = shlex.split(command)
    assert "{" not in command, "a placeholder that the test does not know"
    if words and words != ["--help"]:
        COMMANDS.commands[name].make_context(name, words)  # parses the words and checks them, and runs nothing
    assert name in {*COMMANDS.commands, "COMMAND"}
