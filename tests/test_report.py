"""The tables at the end of a run: they count what ran, and only that."""

from types import ModuleType

import pytest
from pytest import TestReport

from kinformer import discover
from tests.report import break_rows, golden_line, law_line, law_rows, table


def made(outcome: str, *properties: tuple[str, str], when: str = "call", broken: bool = False) -> TestReport:
    """A report as pytest would make it; `broken`: an expected failure."""
    report = TestReport("t", ("t", 0, "t"), {}, outcome, None, when, user_properties=list(properties))
    if broken:
        report.wasxfail = "reason"
    return report


def law(name: str, part: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("law", name), ("part", part)


def test_laws_are_counted_by_part_and_by_how_they_ended() -> None:
    reports = [
        made("passed", *law("chunk", "band-0")),
        made("passed", *law("chunk", "band-1")),
        made("skipped", *law("chunk", "lsh"), broken=True),
        made("failed", *law("padding", "band")),
        made("passed", *law("padding", "band"), when="teardown"),
        made("skipped", *law("padding", "lsh")),
        made("passed"),
    ]
    rows = law_rows(reports)
    assert rows == [("chunk", "2", "3", "2", "1", "0"), ("padding", "1", "1", "0", "0", "1")]
    assert law_line(rows) == "2 laws, 3 pairs of law and part, 4 checks"


def test_goldens_are_checked_only_where_a_test_ran() -> None:
    ran = [made("passed", ("golden", "rope/rope"), when=when) for when in ("setup", "call", "teardown")]
    absent = [made("skipped", ("golden", "alibi"), when="setup"), made("passed", ("golden", "alibi"), when="teardown")]
    assert golden_line(ran) == "goldens: 1 checked"
    assert golden_line(ran + absent) == "goldens: 1 of 2 not checked: alibi"
    assert golden_line([]) == "goldens: 0 checked"


def test_breaks_are_read_from_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, whole = ModuleType("lsh"), ModuleType("band")
    broken.BREAKS = {"chunk": "whole sequences are sorted"}
    found = {"mechanisms": {"lsh": broken}, "patterns": {"band": whole}}
    monkeypatch.setattr(discover, "modules", lambda kind: found.get(kind, {}))
    assert break_rows() == [("mechanisms", "lsh", "chunk", "whole sequences are sorted")]


def test_a_table_is_aligned() -> None:
    assert table(("law", "n"), [("no peeking", "3")]) == ["law         n", "no peeking  3"]
