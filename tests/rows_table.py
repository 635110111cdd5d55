"""Writes docs/rows.md, a table of all mechanisms, from docs/rows.toml: `python -m tests.rows_table`.

The file has names only: parts, members, tests, goldens and claims. Costs come from `kinformer cost`'s table of members,
verdicts from the reports in kinformer/lab/claims/reports, pages from the ideas, and readers of goldens from
tests/parity.

A row of the committed page never loses an entry by accident: the command refuses to write a page in which a row lacks
an entry of before. Costs and verdicts may change. `python -m tests.rows_table --fewer 45 130` allows a loss in
the given rows.
"""

import argparse
import ast
import functools
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinformer.core.discover import part_files, part_names
from kinformer.core.module_import import PACKAGE
from kinformer.core.public_names import CONTRACTS
from kinformer.lab.advise.member_costs import LENGTHS, member_costs
from kinformer.lab.byte_units import size
from kinformer.lab.claims.support.claim_report import REPORTS, VERDICTS, ClaimReport, read_reports
from kinformer.pages.idea import all_ideas
from kinformer.pages.site.markdown import table as markdown_table

ROOT = Path(__file__).resolve().parents[1]
DATA, PAGE = ROOT / "docs" / "rows.toml", ROOT / "docs" / "rows.md"
TESTS, PARITY = ROOT / "tests", ROOT / "tests" / "parity"
LAST = 130
HEADINGS = ("row", "mechanism", "parts", "member and keyword", "tests", "peer or golden", "cost", "claim and result")
BREAK = "<br>"


@dataclass(frozen=True)
class Row:
    """A mechanism, or something around the mechanisms, with the names of everything that belongs to it."""

    number: int
    name: str
    note: str = ""
    parts: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    goldens: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def cells(self) -> dict[str, tuple[str, ...]]:
        """The entries of each cell that needs a reason if it is empty."""
        return {
            "part": self.parts,
            "member": self.members,
            "test": self.tests,
            "peer": (*self.goldens, *self.peers),
            "claim": self.claims,
        }


@dataclass(frozen=True)
class RowTable:
    """The rows, their sections, and the reasons that rows share."""

    rows: tuple[Row, ...]
    sections: Mapping[str, int]
    reasons: Mapping[str, str]
    apart: Mapping[str, str]
    without_row: Mapping[str, str]

    def reason(self, row: Row, cell: str) -> str:
        """The reason of an empty cell; "" without one."""
        text = row.reasons.get(cell, "")
        return self.reasons.get(text, text)


def load_rows(path: Path = DATA) -> RowTable:
    """The table that a file describes."""
    content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = [
        Row(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})
        for fields in content["rows"]
    ]
    return RowTable(tuple(rows), content["sections"], content["reasons"], content["apart"], content["without_row"])


# Names ---------------------------------------------------------------------------------------------------------------


@functools.cache
def public_parts() -> dict[str, str]:
    """The module of each public name, below kinformer."""
    return part_names() | {name: module.removeprefix("kinformer.") for name, module in CONTRACTS.items()}


@functools.cache
def files_of(kind: str) -> dict[str, Path]:
    """The files of a kind by name, read once."""
    return part_files(kind)


def part_file(part: str) -> Path:
    """The file of a part: a public name, or a path below kinformer with an optional `:name`."""
    if ".py" in part:
        return PACKAGE / part.partition(":")[0]
    return PACKAGE / (public_parts()[part].replace(".", "/") + ".py")


def part_place(part: str) -> str:
    """Kind and name of a part's file, such as "patterns/band"."""
    file = part_file(part)
    return f"{file.parent.name}/{file.stem}"


def member_name(member: str) -> str:
    """The member of a command line."""
    return shlex.split(member)[0]


@functools.cache
def golden_readers() -> dict[str, list[Path]]:
    """The test files that read each golden; the tests of the helper itself are left out."""
    readers: dict[str, list[Path]] = {}
    for file in sorted(PARITY.glob("test_*.py")):
        for name in goldens_of(file) if file.name != "test_goldens.py" else ():
            readers.setdefault(name, []).append(file)
    return readers


def goldens_of(file: Path) -> list[str]:
    """The goldens that a test file names in the decorator `goldens`, each once."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    texts = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "goldens"]
    arguments = [call.args[0] for call in calls]
    names = [texts.get(each.id, "") if isinstance(each, ast.Name) else ast.literal_eval(each) for each in arguments]
    return list(dict.fromkeys(map(str, names)))


# Cells ---------------------------------------------------------------------------------------------------------------


def page(rows: RowTable, reports: Mapping[str, ClaimReport] | None = None) -> str:
    """The page in Markdown."""
    if reports is None:
        reports = read_reports(REPORTS, files_of("claims"))
    blocks = ["# All mechanisms: tests, costs and results", *_intro(rows, reports)]
    ends = [*list(rows.sections.values())[1:], LAST + 1]
    for (title, first), end in zip(rows.sections.items(), ends, strict=True):
        lines = [_line(row, rows, reports) for row in rows.rows if first <= row.number < end]
        blocks += [f"## {title}", markdown_table(HEADINGS, lines)]
    return "\n\n".join(blocks) + "\n"


def _intro(rows: RowTable, reports: Mapping[str, ClaimReport]) -> list[str]:
    claims = files_of("claims")
    counts = [f"{sum(report.verdict == verdict for report in reports.values())} {verdict}" for verdict in VERDICTS]
    counts.append(f"{len(claims) - len(reports)} not measured")
    goldens = {golden for row in rows.rows for golden in row.goldens}
    return [
        f"Rows 1 to 123 are the mechanisms. Rows 124 to {LAST} stand for conversions, heads, agents and "
        "options around them. Every name on this page exists: `make test` looks for each part, member, test and claim, "
        "and fails if a row loses something. A cell without an entry gives the reason in italics.",
        "- **parts** are public names of the package, or functions and files of it.\n"
        "- **member and keyword** are the words after `kinformer train`.\n"
        "- **tests** compare the mechanism with its equation or with statements of its paper. A name such as "
        "`test_a_query_reads_its_window` is written as words here.\n"
        "- **peer or golden**: a golden is a recorded result of an implementation by others. A peer is such an "
        "implementation that runs in the test.\n"
        "- **cost** is counted for the first member without the keywords of the row, so it does not separate the "
        f"mechanism from its model. The two numbers are for sequences of {LENGTHS[0]:,} and {LENGTHS[1]:,} tokens; "
        "equal numbers stand once. The state is the bytes that decoding "
        "keeps. Operations are the additions and multiplications of a forward pass per token.\n"
        "- **claim and result**: `kinformer claim NAME` measures a claim. A verdict links to its report in "
        '`kinformer/lab/claims/reports`; a claim without a report there is not measured. "no claim planned" stands in '
        "rows for which no measurement is meant; in others, the paper reports a result that no claim measures yet.",
        f"The rows name {len(goldens)} goldens and {len(claims)} claims. Claims: {', '.join(counts)}.",
    ]


def _line(row: Row, rows: RowTable, reports: Mapping[str, ClaimReport]) -> tuple[str, ...]:
    cells = {
        "part": [_part(part) for part in row.parts],
        "member": _members(row.members),
        "test": _tests(row.tests),
        "peer": [*map(_golden, row.goldens), *_tests(row.peers)],
        "cost": [_cost(member_name(row.members[0])) if row.members else "*no member, so no cost is counted*"],
        "claim": [_claim(claim, reports) for claim in row.claims],
    }
    texts = [
        BREAK.join(entries) if entries else f"*{rows.reason(row, cell)}*" if rows.reason(row, cell) else ""
        for cell, entries in cells.items()
    ]
    note = f"{BREAK}*{row.note}*" if row.note else ""
    return (f'<a id="row-{row.number}"></a>{row.number}', f"{_name(row)}{note}", *texts)


def _name(row: Row) -> str:
    """The name of the mechanism, as a link to the page of its idea if it has one."""
    idea = next((idea for idea in all_ideas().values() if row.number in idea.rows), None)
    return f"[{row.name}](../kinformer/pages/ideas/{idea.name}.md)" if idea else row.name


def _part(part: str) -> str:
    path, _, name = part.partition(":")
    label = name or (path.removesuffix(".py") if ".py" in path else path)
    return f"[`{label}`]({_path(part_file(part))})"


def _members(members: Sequence[str]) -> list[str]:
    """A line for each command line; the link to a member is left out if the line before has it."""
    lines, last = [], ""
    for member in members:
        name, *keywords = shlex.split(member)
        words = f"`{shlex.join(keywords)}`" if keywords else "defaults"
        link = f"[`{name}`]({_path(files_of('members')[name])})"
        lines.append(words if name == last else f"{link} {words if keywords else ''}".strip())
        last = name
    return lines


def _tests(tests: Sequence[str]) -> list[str]:
    """A line for each test function, as words; the link to a file is left out if the line before has it."""
    lines, last = [], ""
    for test in tests:
        file, _, name = test.partition("::")
        words = name.removeprefix("test_").replace("_s_", "'s ").replace("_", " ")
        lines.append(words if file == last else f"[{Path(file).stem}]({_path(TESTS / file)}): {words}")
        last = file
    return lines


def _golden(golden: str) -> str:
    """The name of a golden, as a link to each test that reads it."""
    return "golden " + ", ".join(f"[`{golden}`]({_path(file)})" for file in golden_readers().get(golden, []))


def _cost(member: str) -> str:
    """The counted costs of a member with its defaults."""
    entry = member_costs()["members"][member]
    states = [None if state is None else size(state) for state in entry["state"].values()]
    flops = [_count(count) for count in entry["flops"].values()]
    where = f" (sequences of {entry['own_length']:,})" if "own_length" in entry else ""
    state = "no state" if None in states else f"state {' and '.join(dict.fromkeys(map(str, states)))}"
    return f"`{member}`{where}: {state}; {' and '.join(dict.fromkeys(flops))} operations"


def _count(count: int | None) -> str:
    if count is None:
        return "not counted"
    return f"{count / 1e6:,.3g} M" if count < 1e9 else f"{count / 1e9:,.3g} G"


def _claim(claim: str, reports: Mapping[str, ClaimReport]) -> str:
    report = _path(REPORTS / f"{claim}.json")
    result = f"[**{reports[claim].verdict}**]({report})" if claim in reports else "not measured (no report)"
    return f"[`{claim}`]({_path(files_of('claims')[claim])}): {result}"


def _path(file: Path) -> str:
    return f"../{file.relative_to(ROOT).as_posix()}"


# Writing -------------------------------------------------------------------------------------------------------------


def entries_by_row(text: str) -> dict[int, set[tuple[str, str, str]]]:
    """The entries of each row of a page: heading, label of the link and words; without names, costs and verdicts."""
    lines = re.findall(r'^\| <a id="row-(\d+)"></a>\d+ \|(.*)\|$', text, re.MULTILINE)
    entries: dict[int, set[tuple[str, str, str]]] = {}
    for number, line in lines:
        entries[int(number)] = set()
        for heading, cell in zip(HEADINGS[1:], line.split(" | "), strict=True):
            label = ""  # of the last link, which later entries of the cell share
            for entry in map(str.strip, cell.split(BREAK) if heading not in {"mechanism", "cost"} else ()):
                link = re.match(r"(?:golden )?\[([^\]]*)\]\([^)]*\):? ?(.*)", entry)
                label, words = link.groups() if link else (label, entry)
                if not entry.startswith("*"):  # a reason
                    entries[int(number)].add((heading, label, "" if heading == HEADINGS[-1] else words))
    return entries


def rows_that_lose(old: str, new: str) -> list[int]:
    """The numbers of rows with an entry in the old page that the new one lacks."""
    after = entries_by_row(new)
    return [number for number, entries in entries_by_row(old).items() if entries - after.get(number, set())]


def write(path: Path, text: str, fewer: Sequence[int] = ()) -> None:
    """Write the page, unless a row lacks an entry of the file and is not in `fewer`."""
    old = path.read_text("utf-8") if path.exists() else ""
    lost = [number for number in rows_that_lose(old, text) if number not in fewer]
    if lost:
        numbers = " ".join(map(str, lost))
        sys.exit(
            f"{path.name} was not written: rows {numbers} lose entries. Restore them in "
            f"{DATA.name}, or give --fewer {numbers}"
        )
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Write docs/rows.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fewer", type=int, nargs="+", default=(), help="rows that may lose entries")
    write(PAGE, page(load_rows()), parser.parse_args().fewer)


if __name__ == "__main__":
    main()
