"""What a model writes does not steer a terminal; a pipe gets it byte for byte."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from kinformer.checkpoint.checkpoint import save
from kinformer.cli.__main__ import run
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.pages.comparison_results import MemberResult, Results

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]  # C0, DEL and C1
STEERS = "\x1b]0;title\x07\x1b[2J\x9b31m\r\x08\x7f"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("options", [[], ["--beam", "2"], ["lines"], ["--json"]])
def test_generate_replaces_them_on_a_terminal_alone(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = gpt(d=16, depth=1, heads=2, length=64)
    save(model, tmp_path / "run")
    (tmp_path / "lines").write_bytes(STEERS.replace("\r", "").encode() + b"\n")
    prompt = ["--prompts", f"{tmp_path}/lines"] if options == ["lines"] else ["--prompt", STEERS]
    words = ["generate", f"{tmp_path}/run", *prompt, "--tokens", "40", *([] if options == ["lines"] else options)]
    outputs = {}
    for kind in (io.StringIO, Terminal):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", kind())
            assert run(words) == 0
            outputs[kind] = sys.stdout.getvalue()  # type: ignore[attr-defined]
    piped, typed = outputs[io.StringIO], outputs[Terminal]
    assert not set(typed) & set(CONTROLS) and typed != piped
    assert typed == "".join("�" if letter in CONTROLS else letter for letter in piped)
    if options == ["--json"]:
        assert json.loads(piped)["texts"][0]["prompt"] == STEERS
    else:
        assert ("\x1b]0;title\x07\x1b[2J\x9b31m" in piped) and "title" in typed


def test_fill_replaces_them_on_a_terminal_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    save(bert(d=16, depth=1, heads=2, length=64), tmp_path / "run")
    for kind, steers in ((io.StringIO, True), (Terminal, False)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", kind())
            assert run(["fill", f"{tmp_path}/run", "--text", f"{STEERS}a_b"]) == 0
            assert ("\x1b" in sys.stdout.getvalue()) == steers  # type: ignore[attr-defined]


def test_samples_of_a_comparison_never_hold_them(tmp_path: Path) -> None:
    row = MemberResult(
        name="gpt",
        folder="gpt",
        member="gpt",
        keywords={},
        parameters=1,
        lr=0.1,
        measures={"bits per byte": 1.0},
        interval=None,
        tokens_per_second=1.0,
        ms_per_token=1.0,
        steps=1,
        minutes=1.0,
        points=[],
        prompt=f"the {STEERS}",
        sample=f"cat {STEERS}",
        shown="continues the first 4 bytes of valid",
        answer=None,
        state_bytes=None,
        peak_bytes=1,
        lengths=[],
        runs=[],
    )
    settings = {"measured": "valid", "data": "text", "hardware": "CPU", "matched": [], "budget": "1 step"}
    file = io.StringIO()
    Results(settings, {}, [row]).show(Console(file=file, width=100), tmp_path)
    page = file.getvalue()
    assert not set(page) & set(CONTROLS) and "the �]0;title��[2J�31m" in page and "cat �]0;title��[2J" in page
