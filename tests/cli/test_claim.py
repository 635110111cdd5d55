"""kinformer claim: reports of one claim and of all, the page, longer training, and going on after an interruption."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kinformer.cli.__main__ import run
from kinformer.lab.claims.support.claim_report import read_reports
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine


def measured(statement: str, values: Sequence[float]) -> Claim:
    return Claim(
        statement,
        "arithmetic",
        (Measure("a number <b>", values, "least", 1, no_effect=0),),
        {"two": "2"},
        (Plot("a toy", lines=[PlotLine((0, 1), (1, 2))]),),
    )


class Toys:
    """Three claims: one that holds, one that does not, and one that fails until it is mended."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int | None]] = []
        self.is_mended = False

    def yes(self, seeds: Sequence[int], steps: int = 50) -> Claim:
        self.calls.append(("yes", len(seeds), steps))
        return measured("one & one", [1.0] * len(seeds))

    def no(self, seeds: Sequence[int]) -> Claim:
        self.calls.append(("no", len(seeds), None))
        return measured("zero is one", [0.0] * len(seeds))

    def broken(self, seeds: Sequence[int]) -> Claim:
        self.calls.append(("broken", len(seeds), None))
        if not self.is_mended:
            raise RuntimeError("no such <thing>")
        return measured("one", [0.2, 1.8, 1.0][: len(seeds)])


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Toys:
    toys = Toys()
    modules: dict[str, Any] = {}
    for name in ("yes", "no", "broken"):
        modules[name] = ModuleType(name, f"The claim {name}.")
        modules[name].claim = getattr(toys, name)
    modules["yes"].MINUTES = 2
    monkeypatch.setattr("kinformer.cli.support.static_source.part_files", lambda kind: {})
    monkeypatch.setattr("kinformer.cli.support.static_source.load_plugins", lambda kind, own: modules)
    monkeypatch.setattr("kinformer.cli.claim.modules", lambda kind: modules)
    return toys


def test_a_claim_is_reported_as_text_json_and_picture(
    toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "here"
    assert run(["claim"]) == 0 and "The claim yes." in capsys.readouterr().out
    assert run(["claim", "yes", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("one & one\narithmetic\n")
    assert "holds          a number <b>: 1, wanted at least 1" in printed and "  two: 2" in printed
    assert (out / "yes.png").stat().st_size
    text = (out / "yes.txt").read_text()
    assert text.startswith("one & one\n") and "\nholds\n" in text and "measured in " in text
    fields = json.loads((out / "yes.json").read_text())
    assert fields["verdict"] == "holds" and fields["measures"][0]["values"] == [1, 1, 1]
    (report,) = read_reports(out, ["yes", "no"]).values()
    assert report.statement == "one & one" and report.facts == {"two": "2"} and report.minutes is None
    assert run(["claim", "ys"]) == 2 and "yes" in capsys.readouterr().err


def test_minutes_train_longer_in_proportion(toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", str(tmp_path), "--seeds", "2")
    assert run(["claim", "yes", "--minutes", "10", *out]) == 0
    assert run(["claim", "yes", "--minutes", "1", *out]) == 0
    assert toys.calls == [("yes", 2, 250), ("yes", 2, 50)]  # its own steps take two minutes
    assert run(["claim", "no", "--minutes", "10", *out]) == 2
    assert "--minutes has no effect on the claim 'no'" in capsys.readouterr().err
    assert len(toys.calls) == 2
    assert run(["claim", "--all", "--minutes", "10", *out]) == 2
    assert run(["claim", "yes", "--all", *out]) == 2


def test_all_goes_on_with_what_is_missing(toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["claim", "--all", "--seeds", "2", "--out", str(tmp_path)]
    assert run(words) == 1
    assert [name for name, *_ in toys.calls] == ["broken", "no", "yes"]
    captured = capsys.readouterr()
    assert "broken  not measured: RuntimeError: no such <thing>" in captured.out
    assert "no      does not hold" in captured.out and "yes     holds" in captured.out
    page = (tmp_path / "index.html").read_text()
    assert "1</b>" not in page and "RuntimeError: no such &lt;thing&gt;" in page
    assert '<img src="yes.png"' in page and '<img src="broken.png"' not in page
    assert "one &amp; one" in page and "a number &lt;b&gt;" in page
    assert '1 <b class="holds">holds</b>, 1 <b class="does-not-hold">does not hold</b>' in page

    toys.is_mended = True
    toys.calls.clear()
    assert run(words) == 0
    assert [name for name, *_ in toys.calls] == ["broken"]
    page = (tmp_path / "index.html").read_text()
    assert "not resolved</b>, 0 not measured" in page and "Not measured" not in page

    (tmp_path / "yes.json").write_text("{}")
    toys.calls.clear()
    assert run(words) == 0
    assert [name for name, *_ in toys.calls] == ["yes"]


def test_a_file_in_place_of_the_folder_is_refused_before_anything_is_measured(
    toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for words in (["--all"], ["yes"]):
        assert run(["claim", *words, "--out", str(file)]) != 0
        assert "notes.txt" in capsys.readouterr().err
    assert not toys.calls and file.read_text() == "mine"
