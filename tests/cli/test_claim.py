"""kinformer claim: reports of one claim and of all, the page, longer training, and going on after an interruption."""

import json
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kinformer.cli.__main__ import run
from kinformer.core.discover import part_files
from kinformer.lab.claims.support.claim_report import VERDICTS, measured_report, read_reports
from kinformer.lab.claims.support.verdict import COVERAGE, MEANINGS, Claim, Measure
from kinformer.lab.plot import Plot, PlotLine
from kinformer.pages.claims_page import LEAD


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
    modules["yes"].WIDTH, modules["yes"].READ, modules["yes"].SAYS = 8, measured, "one"
    monkeypatch.setattr("kinformer.cli.support.static_source.part_files", lambda kind: {})
    monkeypatch.setattr("kinformer.cli.support.static_source.load_plugins", lambda kind, own: modules)
    monkeypatch.setattr("kinformer.cli.claim.modules", lambda kind: modules)
    return toys


def test_a_claim_is_reported_as_text_json_and_picture(
    toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "here"
    assert run(["claim"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("Claims of papers with the verdicts of our measurements;")
    assert "\nyes     not measured  The claim yes.\n" in listed
    assert run(["claim", "yes", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("one & one\narithmetic\n")
    assert "holds          a number <b>: 1, expected at least 1" in printed and "  two: 2" in printed
    assert (out / "yes.png").stat().st_size
    text = (out / "yes.txt").read_text()
    assert text.startswith("one & one\n") and "\nholds\n" in text and "measured in " in text
    fields = json.loads((out / "yes.json").read_text())
    assert fields["verdict"] == "holds" and fields["measures"][0]["values"] == [1, 1, 1]
    (report,) = read_reports(out, ["yes", "no"]).values()
    assert report.statement == "one & one" and report.facts == {"two": "2"} and report.minutes is None
    assert report.seeds == (0, 1, 2) and report.settings == {"width": "8", "steps": "50"}
    for line in ("seeds: 0, 1, 2", "settings: width=8, steps=50"):
        assert f"\n{line}\n" in text and f"\n{line}\n" in printed
    for word in ("torch ", "kinformer ", "threads: ", "cores: "):
        assert word in report.on
    assert run(["claim", "ys"]) == 2 and "yes" in capsys.readouterr().err


def test_a_measured_claim_is_listed_with_its_verdict_before_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claim"]) == 0
    rows = {line.partition(" ")[0]: line for line in capsys.readouterr().out.splitlines()}
    for name in part_files("claims"):
        report = measured_report(name)
        verdict = report.verdict if report else "not measured"
        assert rows[name].split(maxsplit=1)[1].startswith(f"{verdict}  "), name
    assert {report.verdict for name in part_files("claims") if (report := measured_report(name))} == {*VERDICTS}


def test_a_report_of_an_earlier_version_stays_readable(tmp_path: Path) -> None:
    measures = [{"quantity": "a", "values": [1.0, 2.0], "summary": "1.5", "verdict": "holds"}]
    fields = {"name": "yes", "statement": "one", "source": "a paper", "verdict": "holds", "measures": measures}
    fields |= {"facts": {}, "seconds": 2.0, "minutes": 10.0, "on": "x86_64"}
    (tmp_path / "yes.json").write_text(json.dumps(fields))
    (report,) = read_reports(tmp_path, ["yes"]).values()
    assert report.conditions == [
        "measured in 2 s on x86_64",
        "longer training: --minutes 10",
        "seeds: 2, whose numbers are not recorded",
    ]


def test_minutes_train_longer_in_proportion(toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", str(tmp_path), "--seeds", "2")
    assert run(["claim", "yes", "--minutes", "10", *out]) == 0
    assert read_reports(tmp_path, ["yes"])["yes"].settings["steps"] == "250"
    assert run(["claim", "yes", "--minutes", "2", *out]) == 0
    assert toys.calls == [("yes", 2, 250), ("yes", 2, 50)]  # its own steps take two minutes
    capsys.readouterr()
    assert run(["claim", "yes", "--minutes", "1", *out]) == 2
    assert "got 1, expected at least 2. Leave it out" in " ".join(capsys.readouterr().err.split())
    assert run(["claim", "no", "--minutes", "10", *out]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "the claim 'no' has no adjustable number of training steps: got --minutes 10" in message
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
    assert "no such <thing>" not in page and "RuntimeError: no such &lt;thing&gt;" in page
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


def test_all_writes_the_page_of_claims_that_were_measured_singly(
    toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.is_mended = True
    for name in ("yes", "no", "broken"):
        assert run(["claim", name, "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "index.html").exists()
    toys.calls.clear()
    capsys.readouterr()
    assert run(["claim", "--all", "--out", str(tmp_path)]) == 0
    assert not toys.calls and "the page is " in capsys.readouterr().out
    page = (tmp_path / "index.html").read_text()
    assert '<img src="yes.png"' in page and "0 not measured" in page


def test_all_names_the_reports_of_other_seeds_and_minutes_that_it_keeps(
    toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.is_mended = True
    assert run(["claim", "yes", "--minutes", "10", "--out", str(tmp_path)]) == 0
    assert run(["claim", "no", "--seeds", "2", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run(["claim", "--all", "--seeds", "3", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "the report of no with 2 seeds is kept; delete no.json to measure it again" in lines
    assert "the report of yes with --minutes 10 is kept; delete yes.json to measure it again" in lines
    assert not any("report of broken" in line for line in lines)


def test_the_numbers_are_written_although_the_picture_cannot_be_saved(
    toys: Toys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("kinformer.pages.plots.save_plots", fail)
    assert run(["claim", "yes", "--out", str(tmp_path)]) != 0
    assert list(read_reports(tmp_path, ["yes"])) == ["yes"]


def test_the_help_and_the_page_say_the_same_about_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claim", "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for phrase in (*MEANINGS["holds"].split(" and "), *MEANINGS["does not hold"].split(", or "), COVERAGE):
        assert phrase in printed, phrase
        assert phrase in unescape(LEAD), phrase


def test_a_file_in_place_of_the_folder_is_refused_before_anything_is_measured(
    toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for words in (["--all"], ["yes"]):
        assert run(["claim", *words, "--out", str(file)]) != 0
        assert "notes.txt" in capsys.readouterr().err
    assert not toys.calls and file.read_text() == "mine"
