"""What every test run prints at its end: the laws that ran and over how many parts, the laws that parts break, and the
goldens that were checked."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from pytest import CollectReport, TestReport

Report = TestReport | CollectReport
ENDS = ("passed", "breaks", "failed")


def properties(report: Report, key: str) -> list[str]:
    """The values that a test recorded under a key with record_property."""
    return [str(value) for name, value in getattr(report, "user_properties", ()) if name == key]


def outcome(report: TestReport) -> str:
    """passed, failed, skipped, or breaks: an expected failure, which a part declares in BREAKS."""
    return "breaks" if report.outcome == "skipped" and hasattr(report, "wasxfail") else report.outcome


def part_of(example: str) -> str:
    """The part of an example: "patterns.band" of "patterns.band-2"."""
    return re.sub(r"-\d+$", "", example)


def law_rows(reports: Iterable[Report]) -> list[tuple[str, ...]]:
    """Per law: parts it ran over, checks made, and how these ended; a test records the properties law and part."""
    parts: dict[str, set[str]] = {}
    ends: dict[str, Counter[str]] = {}
    for report in reports:
        if report.when != "call" or outcome(report) == "skipped":
            continue
        for law in properties(report, "law"):
            parts.setdefault(law, set()).update(map(part_of, properties(report, "part")))
            ends.setdefault(law, Counter())[outcome(report)] += 1
    counts = {law: (len(parts[law]), ends[law].total(), *(ends[law][end] for end in ENDS)) for law in sorted(parts)}
    return [(law, *map(str, numbers)) for law, numbers in counts.items()]


def law_line(rows: Sequence[tuple[str, ...]]) -> str:
    """The sum over all laws, in words."""
    pairs, checks = (sum(int(row[column]) for row in rows) for column in (1, 2))
    return f"{len(rows)} laws, {pairs} pairs of law and part, {checks} checks"


def break_rows() -> list[tuple[str, ...]]:
    """Every BREAKS entry of every part: kind, part, law, reason."""
    from kinformer import discover

    return [
        (kind, name, law, reason)
        for kind in discover.KINDS
        for name, module in discover.modules(kind).items()
        for law, reason in getattr(module, "BREAKS", {}).items()
    ]


def golden_line(reports: Iterable[Report]) -> str:
    """How many goldens were checked, and which were not. An absent folder counts as one."""
    seen: dict[str, bool] = {}
    for report in reports:
        for name in properties(report, "golden"):
            seen[name] = seen.get(name, False) or report.when == "call"
    unchecked = sorted(name for name, checked in seen.items() if not checked)
    if not unchecked:
        return f"goldens: {len(seen)} checked"
    return f"goldens: {len(unchecked)} of {len(seen)} not checked: {', '.join(unchecked)}"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
