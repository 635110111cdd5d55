"""Standard output that cannot be written: one line, and no second error when the process ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinformer.cli.__main__ import run
from tests.cli.folders import folder

COMMANDS = {
    "help": "--help",
    "list": "list",
    "show": "show gpt",
    "generate": "generate {run} --prompt ab --tokens 3",
    "generate json": "generate {run} --prompt ab --tokens 3 --json",
    "evaluate": "evaluate {run} --data text={text}",
    "evaluate json": "evaluate {run} --data text={text} --json",
}


@contextmanager
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard output goes to a device that is always full; at the end it is closed, as when a process ends."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with monkeypatch.context() as patch, open("/dev/full", "w") as output:
        patch.setattr("sys.stdout", output)
        yield


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_standard_output_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 40)
    words = COMMANDS[name].format(run=folder(tmp_path / "run", "gpt", length=16), text=tmp_path / "text").split()
    with full(monkeypatch):
        assert run(words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert lines == [
        "kinformer: cannot write to standard output: No space left on device; free space there, or write the output "
        "elsewhere"
    ]


def test_a_wrong_word_is_reported_if_nothing_was_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with full(monkeypatch):
        assert run(["list", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("kinformer: there is no kind 'nothing'")


def test_a_closed_standard_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)  # as Python has it after `>&-`
    assert run(["list"]) == 0
