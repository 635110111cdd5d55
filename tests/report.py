"""What every test run prints at its end: the laws that ran and over how many parts, the laws that examples break, what
could not be judged, and the goldens that were checked."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from pytest import CollectReport, TestReport

Report = TestReport | CollectReport
ENDS = ("passed", "breaks", "failed", "nothing to judge")


def properties(report: Report, key: str) -> list[str]:
    """The values that a test recorded under a key with record_property."""
    return [str(value) for name, value in getattr(report, "user_properties", ()) if name == key]


def outcome(report: TestReport) -> str:
    """passed, failed, breaks (a failure that an example declares and that was found), or nothing to judge."""
    if report.outcome != "skipped":
        return report.outcome
    return "breaks" if hasattr(report, "wasxfail") else "nothing to judge"


def part_of(example: str) -> str:
    """The part of an example: "patterns.band" of "patterns.band.2" or "patterns.band-2"."""
    return re.sub(r"[-.]\d+$", "", example)


def law_rows(reports: Iterable[Report]) -> list[tuple[str, ...]]:
    """Per law: parts it ran over, checks made, and how these ended; a test records the properties law and part."""
    parts: dict[str, set[str]] = {}
    ends: dict[str, Counter[str]] = {}
    for report, law, part in _judged(reports):
        parts.setdefault(law, set()).add(part_of(part))
        ends.setdefault(law, Counter())[outcome(report)] += 1
    counts = {law: (len(parts[law]), ends[law].total(), *(ends[law][end] for end in ENDS)) for law in sorted(parts)}
    return [(law, *map(str, numbers)) for law, numbers in counts.items()]


def law_line(rows: Sequence[tuple[str, ...]]) -> str:
    """The sum over all laws, in words."""
    pairs, checks = (sum(int(row[column]) for row in rows) for column in (1, 2))
    return f"{len(rows)} laws, {pairs} pairs of law and part, {checks} checks"


def break_rows(reports: Iterable[Report]) -> list[tuple[str, ...]]:
    """Every break that was declared and found: example, law, reason."""
    rows = [(part, law, properties(report, "breaks")) for report, law, part in _judged(reports)]
    return sorted((part, law, reasons[0]) for part, law, reasons in rows if reasons)


def unjudged_lines(reports: Iterable[Report]) -> list[str]:
    """What no law looked at, for each reason: the laws, then by name the examples, and how they were used there."""
    lines: dict[str, tuple[set[str], set[str]]] = {}
    for report, law, part in _judged(reports):
        for why in properties(report, "unjudged"):
            place, _, reason = why.rpartition("\t")
            laws, parts = lines.setdefault(reason, (set(), set()))
            laws.add(law)
            parts.add(f"{part} ({place})" if place else part)
    return [
        line
        for reason, (laws, parts) in sorted(lines.items())
        for line in (f"{', '.join(sorted(laws))}: {reason}", f"    {', '.join(sorted(parts))}")
    ]


def golden_line(reports: Iterable[Report]) -> str:
    """How many goldens were checked, and which were not. An absent folder counts as one."""
    judged: dict[str, bool] = {}
    for report in reports:
        for name in properties(report, "golden"):
            judged[name] = judged.get(name, False) or report.when == "call"
    unchecked = sorted(name for name, checked in judged.items() if not checked)
    if not unchecked:
        return f"goldens: {len(judged)} checked"
    return f"goldens: {len(unchecked)} of {len(judged)} not checked: {', '.join(unchecked)}"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]


def _judged(reports: Iterable[Report]) -> Iterable[tuple[TestReport, str, str]]:
    """The tests of laws that ran, with the law and each part."""
    for report in reports:
        if isinstance(report, TestReport) and report.when == "call":
            for law in properties(report, "law"):
                for part in properties(report, "part"):
                    yield report, law, part
