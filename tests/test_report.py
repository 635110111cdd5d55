"""The tables at the end of a run: they count what ran, and only that."""

from pytest import TestReport

from tests.report import break_rows, golden_line, law_line, law_rows, table, unjudged_lines


def make_report(outcome: str, *properties: tuple[str, str], when: str = "call", broken: bool = False) -> TestReport:
    """A report as pytest would make it; `broken`: an expected failure."""
    report = TestReport("t", ("t", 0, "t"), {}, outcome, None, when, user_properties=list(properties))
    if broken:
        report.wasxfail = "reason"
    return report


def law(name: str, part: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("law", name), ("part", part)


def test_laws_are_counted_by_part_and_by_how_they_ended() -> None:
    reports = [
        make_report("passed", *law("chunk", "band.0")),
        make_report("passed", *law("chunk", "band.1")),
        make_report("skipped", *law("chunk", "lsh"), broken=True),
        make_report("failed", *law("padding", "band")),
        make_report("passed", *law("padding", "band"), when="teardown"),
        make_report("skipped", *law("padding", "lsh")),
        make_report("passed"),
    ]
    rows = law_rows(reports)
    assert rows == [("chunk", "2", "3", "2", "1", "0", "0"), ("padding", "2", "2", "0", "0", "1", "1")]
    assert law_line(rows) == "2 laws, 4 pairs of law and part, 5 checks"


def test_goldens_are_checked_only_where_a_test_ran() -> None:
    ran = [make_report("passed", ("golden", "rope/rope"), when=when) for when in ("setup", "call", "teardown")]
    absent = [
        make_report("skipped", ("golden", "alibi"), when="setup"),
        make_report("passed", ("golden", "alibi"), when="teardown"),
    ]
    assert golden_line(ran) == "goldens: 1 checked"
    assert golden_line(ran + absent) == "goldens: 1 of 2 not checked: alibi"
    assert golden_line([]) == "goldens: 0 checked"


def test_breaks_are_those_that_were_found() -> None:
    report = make_report(
        "skipped", *law("chunk", "mechanisms.lsh.0"), ("breaks", "whole sequences are sorted"), broken=True
    )
    assert break_rows([report, make_report("passed", *law("chunk", "patterns.band.0"))]) == [
        ("mechanisms.lsh.0", "chunk", "whole sequences are sorted")
    ]


def test_what_was_not_judged_is_named_once_for_each_reason() -> None:
    why = ("unjudged", "no state to judge: use Causal()")
    across = ("unjudged", "across\trefused: use Softmax")
    reports = [
        make_report("skipped", *law("chunk", "a.0"), why),
        make_report("skipped", *law("rows", "a.0"), why),
        make_report("skipped", *law("chunk", "b.0"), why),
        make_report("passed", *law("chunk", "c.0"), across),
    ]
    assert unjudged_lines(reports) == [
        "chunk, rows: no state to judge: use Causal()",
        "    a.0, b.0",
        "chunk: refused: use Softmax",
        "    c.0 (across)",
    ]


def test_a_table_is_aligned() -> None:
    assert table(("law", "n"), [("no peeking", "3")]) == ["law         n", "no peeking  3"]
