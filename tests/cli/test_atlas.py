"""kinformer atlas: refusals of folders that are no atlas, and its help."""

from pathlib import Path

import pytest

from kinformer.cli.__main__ import run
from kinformer.pages.atlas.write_atlas import PAGE, TITLE


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["atlas", *words]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    return captured.err


def test_a_folder_with_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for words in ((), ("--overwrite",)):
        assert "holds files that are no atlas" in refusal(capsys, "--out", str(tmp_path), *words)
    assert notes.read_text() == "mine" and len(list(tmp_path.iterdir())) == 1
    assert "got the file" in refusal(capsys, "--out", str(notes))


def test_an_earlier_atlas_is_only_replaced_with_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / PAGE).write_text(f"<title>{TITLE}</title>")
    assert "--overwrite" in refusal(capsys, "--out", str(tmp_path))


def test_a_missing_folder_of_claims_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "typo"
    assert f"{missing} is not a folder" in refusal(capsys, "--out", str(tmp_path / "new"), "--claims", str(missing))
    assert not (tmp_path / "new").exists()


def test_out_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--out" in refusal(capsys)


def test_an_atlas_replaces_an_earlier_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinformer.pages.atlas.member_card.draw_member", lambda name: '<div class="drawing"></div>')
    out = tmp_path / "new" / "atlas"
    assert run(["atlas", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"the atlas: {out / PAGE}\n"
    (out / PAGE).write_text(f"<title>{TITLE}</title>")
    assert run(["atlas", "--out", str(out), "--overwrite"]) == 0
    assert "member/gpt" in (out / PAGE).read_text(encoding="utf-8")
