"""Messages of every command: one short line for any value, and suggested commands that run as they are printed."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import save
from kinformer.cli.__main__ import COMMANDS, run
from kinformer.cli.errors import LONGEST, shorten_values
from kinformer.core.module_import import PACKAGE, load_user_module
from tests.cli.folders import folder
from tests.cli.test_topics import make_placeholders, parses

WORD = "x" * 10_000
SPACED = "a b " * 2_500
SHORT = 500  # characters of a message
OF_THIS_PART = (
    *("show", "check", "claim", "evaluate", "generate", "read", "fill", "classify", "forecast", "calibrate", "play"),
    "score",
    *("knn-lm", "datastore build", "datastore index", "datastore info", "datastore search"),
)
OWN_MEMBER = """
from kinformer import gpt, member

@member
def mine(d: int = 16):
    return gpt(d=d, depth=1, heads=2, length=32)
"""


def commands(group: Any = COMMANDS, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it, such as ("datastore", "build")."""
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


BY_WORDS = dict(commands())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """A value of each argument that a command needs, by the argument's name."""
    base = tmp_path_factory.mktemp("world")
    (base / "text").write_bytes(b"the cat sat on the mat. " * 40)
    data, file = f"text={base}/text", f"{base}/text"
    return {
        "folder": [folder(base / "run", "gpt", length=16)],
        "member": ["gpt"],
        "members": ["gpt"],
        "words": ["band"],
        "kind": ["members"],
        "name": ["bigbird_paths"],
        "file": [file],
        "target": [file],
        "store": [file],
        "--data": ["--data", data],
        "--out": ["--out", f"{base}/out"],
        "--to": ["--to", "window"],
        "--save": ["--save", f"{base}/saved"],
        "--steps": ["--steps", "1"],
        "--text": ["--text", "a_b"],
        "--texts": ["--texts", "a_b"],
        "--env": ["--env", "t_maze"],
        "--task": ["--task", "lm"],
        "--datastore": ["--datastore", file],
        "--prompt": ["--prompt", "a"],
    }


def line(words: tuple[str, ...], long: Any, value: str, world: dict[str, list[str]]) -> list[str]:
    """A command line in which one argument has a long value, and the others that it needs have usual ones."""
    needed = [param for param in BY_WORDS[words].params if param.required and param is not long]
    if words[0] in ("train", "compare"):
        needed += [param for param in BY_WORDS[words].params if param.name == "steps" and param is not long]
    options: list[tuple[int, list[str]]] = []
    arguments: list[tuple[int, list[str]]] = []
    for param in [*needed, long]:
        is_option = param.param_type_name == "option"
        words_of_it = world[param.opts[0] if is_option else param.name] if param is not long else [value]
        if param is long and is_option:
            words_of_it = [param.opts[0], value]
        (options if is_option else arguments).append((BY_WORDS[words].params.index(param), words_of_it))
    every = [word for _, piece in sorted(arguments) for word in piece] + [w for _, piece in options for w in piece]
    return [*words, *every]


TEXTS = ("prompt", "stop", "source", "text")  # a model reads texts of any length
FIRST = {  # the first argument of each command that takes a text, and a path; `make prove` tries every argument
    (words, kind): next((param for param in command.params if kind in param.bare_type()), None)
    for words, command in BY_WORDS.items()
    for kind in ("str", "Path")
}
LONG = [
    pytest.param(
        words,
        param,
        value,
        id=f"{' '.join(words)} {param.opts[0]} {number}",
        marks=[] if number == 0 and param in (FIRST[words, "str"], FIRST[words, "Path"]) else pytest.mark.prove,
    )
    for words, command in BY_WORDS.items()
    for param in command.params
    if not getattr(param, "is_flag", False) and param.name not in TEXTS
    for number, value in enumerate((WORD, SPACED, f"text={WORD}"))
]


@pytest.mark.parametrize(("words", "param", "value"), LONG)
def test_a_value_of_ten_thousand_letters_gives_one_short_line(
    words: tuple[str, ...],
    param: Any,
    value: str,
    world: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    code = run(line(words, param, value, world))
    err = capsys.readouterr().err
    said = [text for text in err.splitlines() if text.startswith("kinformer: ")]
    assert code in (0, 1, 2) and len(said) == (code != 0), err[:2000]
    assert all(len(text) < SHORT for text in err.splitlines()), err[:2000]


def placed_commands(module: Path) -> Iterator[str]:
    """The commands in backticks in the messages of a file, with {} for values that are filled in at run time."""
    text_of_file = module.read_text(encoding="utf-8")
    if "`kinformer " not in text_of_file:
        return
    tree = ast.parse(text_of_file)
    no_messages = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    no_messages |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in no_messages:
            text = node.value
        else:
            continue
        yield from re.findall(r"`(kinformer [^`]*)`", " ".join(text.split()))


NAMED = {
    "kinformer show MEMBER": "kinformer show gpt",
    "kinformer show TOPIC": "kinformer show sparse",
    "kinformer cost MEMBER": "kinformer cost gpt",
    "kinformer cost MEMBER key=value": "kinformer cost gpt depth=2",
    "kinformer knn-lm {} --datastore STORE --data text=PATH": "kinformer knn-lm RUN --datastore STORE --data text=PATH",
    "kinformer generate {} --prompt TEXT": "kinformer generate RUN --prompt TEXT",
}
SUGGESTED = sorted({command for file in PACKAGE.rglob("*.py") for command in placed_commands(file)})


@pytest.fixture(scope="module")
def placeholders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A value for each placeholder of a suggested command."""
    return make_placeholders(tmp_path_factory.mktemp("placeholders"))


@pytest.mark.parametrize("command", SUGGESTED)
def test_a_command_in_a_message_is_understood(command: str, placeholders: dict[str, str]) -> None:
    """A bare name of a command refers to it; everything longer must parse."""
    words = shlex.split(NAMED.get(command, command.replace("{}", "gpt")))[1:]
    group: Any = COMMANDS
    while words and hasattr(group, "commands"):
        assert words[0] in group.commands, command
        group = group.commands[words.pop(0)]
    if words:
        parses(shlex.split(NAMED.get(command, command.replace("{}", "gpt")))[1:], placeholders)


def test_hints_for_a_model_of_ones_own_member_run_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN_MEMBER)
    Path("text.txt").write_bytes(b"the cat sat on the mat. " * 40)
    torch.manual_seed(0)
    save(load_user_module("mine.py").mine(), "run")
    own = ["--member", "mine.py:mine"]
    hints: list[str] = []
    for words in (
        ["datastore", "build", "run", "--data", "text=text.txt", "--out", "store"],
        ["knn-lm", "run", "--datastore", "store", "--data", "text=text.txt", "--k", "2"],
        ["read", "run", "text.txt", "--save", "state"],
    ):
        assert run([*words, *own]) == 0
        hints += re.findall(r"^.*: (kinformer .*)$", capsys.readouterr().err, re.MULTILINE)
    assert [hint.split()[1] for hint in hints] == ["datastore", "knn-lm", "generate", "generate"]
    for hint in hints:
        more = ["--tokens", "2"] if "generate" in hint else []
        assert run([*shlex.split(hint)[1:], *more]) == 0, (hint, capsys.readouterr().err)


def test_long_values_are_cut_in_their_middle(tmp_path: Path) -> None:
    assert shorten_values(f"no file {WORD}; give one") == f"no file {'x' * 40}...{'x' * 36}; give one"
    spaced = SPACED.strip()
    assert len(shorten_values(f"there is no {spaced}", [SPACED])) == len("there is no ") + LONGEST
    whole = tmp_path / ("a" * 90)
    whole.mkdir()
    assert shorten_values(f"{whole} is empty") == f"{whole} is empty"  # a user may have to copy it
    assert shorten_values(f"{whole}/none is missing") == f"{whole}/none is missing"  # also if it names what is missing
    assert "..." in shorten_values(f"{whole}/no/folder is missing")
    assert "..." in shorten_values(f"{whole}/{'b' * 300} is missing")


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    assert run([*words, "--help"]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_help_groups_the_commands_by_what_a_visitor_wants(capsys: pytest.CaptureFixture[str]) -> None:
    lines = help_of(capsys)
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Learn and test:", "Choose, train and compare:", "Use a trained model:"]
    below = lines[lines.index("Learn and test:") :]
    assert {line.split()[0] for line in below if line.startswith("  ")} == set(COMMANDS.commands)  # type: ignore[attr-defined]
    names = [line.split()[0] for line in below if line.startswith("  ")]
    assert names.index("datastore") < names.index("knn-lm") and names.index("calibrate") < names.index("generate")
    assert any("--version" in line for line in lines)


@pytest.mark.parametrize("words", OF_THIS_PART)
def test_help_is_short_and_begins_with_examples(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = help_of(capsys, *words.split())
    examples = next(n for n, line in enumerate(lines) if line.strip() == "Examples:")
    assert len(lines) <= 82 and examples <= 5, (len(lines), examples)
