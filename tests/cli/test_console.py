"""Text on the terminal is printed as it is: no file name turns into an emoji, and no bracket into a style."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from kinformer.cli.__main__ import run
from kinformer.cli.support.console import plain_console
from kinformer.core.module_import import PACKAGE

OWN = '''
from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class five(Pattern):
    """Even [red] queries :smile: read even keys."""

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor((q - k) % 2 == 0)


EXAMPLES = (five(),)
'''


def test_names_and_texts_of_the_user_are_printed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smile:five.py").write_text(OWN)
    Path("five.py").write_text(OWN)
    assert run(["show", "five.py:five"]) == 0
    assert "five.py:five" in (out := capsys.readouterr().out) and "Even [red] queries :smile: read even keys." in out
    assert run(["check", "smile:five.py:five", "--law", "runs"]) == 0
    assert "smile:five.py: five, a pattern; 1 example" in capsys.readouterr().out


def test_every_console_of_the_commands_is_plain() -> None:
    console = plain_console(file=(file := io.StringIO()), width=100)
    console.print("mine:five:[red]6[/red] :smile:")
    assert file.getvalue() == "mine:five:[red]6[/red] :smile:\n"
    Console(file=(rich := io.StringIO()), width=100).print("mine :smile:")
    assert rich.getvalue() != "mine :smile:\n"  # so the test would notice
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "console.py":
            plain = text.replace("Console(stderr=True, highlight=False, markup=False, emoji=False)", "")  # of lab
            assert not re.search(r"(?<![\w`])Console\(", plain), path
        assert text.count("TextColumn(") == len(re.findall(r"TextColumn\([^)]*markup=False\)", text)), path
