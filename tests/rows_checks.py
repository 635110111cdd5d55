"""Checks of the table of all mechanisms, docs/rows.toml. Each yields a message for everything that is wrong."""

import ast
import functools
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kinformer.cli.support.catalogue import PaperEntry, list_papers
from kinformer.cli.support.citations import citations
from kinformer.cli.support.static_source import constant
from kinformer.core.discover import UNJUDGED, find_member, kinds
from kinformer.core.keywords import parse_keywords
from tests.rows_table import (
    DATA,
    LAST,
    PARITY,
    TESTS,
    Row,
    RowTable,
    files_of,
    golden_readers,
    member_name,
    part_file,
    part_place,
    public_parts,
)

# The fewest entries of all rows together. Raise a number when rows gain entries; lower it only with a reason.
FEWEST = {"part": 338, "member": 281, "test": 396, "peer": 96, "claim": 86}
WRITE = "Then run `python -m tests.rows_table`"


def problems(rows: RowTable) -> list[str]:
    """Everything that is wrong with the table."""
    checks = (
        check_numbers,
        check_parts,
        check_members,
        check_tests,
        check_goldens,
        check_claims,
        check_blanks,
        check_nothing_is_left_out,
        check_exceptions,
        check_floor,
    )
    return [message for check in checks for message in check(rows)]


def check_numbers(rows: RowTable) -> Iterator[str]:
    """Each number from 1 to the last occurs once, in order, and sections begin at rows."""
    numbers = [row.number for row in rows.rows]
    yield from (f"row {number} occurs {count} times" for number, count in Counter(numbers).items() if count > 1)
    yield from (f"row {number} is missing" for number in range(1, LAST + 1) if number not in numbers)
    yield from (f"row {number} does not exist; the last row is {LAST}" for number in numbers if number > LAST)
    if numbers != sorted(numbers):
        yield "the rows are not in the order of their numbers"
    for row in rows.rows:
        yield from (f"row {row.number} names {name} twice" for name in repeated(row))


def repeated(row: Row) -> list[str]:
    """The entries that a cell of a row has twice."""
    counts = [Counter(entries) for entries in row.cells.values()]
    return [entry for count in counts for entry, times in count.items() if times > 1]


def check_parts(rows: RowTable) -> Iterator[str]:
    """Each part is a public name, or a file of the package, or a name that its file defines."""
    for row in rows.rows:
        for part in row.parts:
            if not has_part(part):
                yield f"row {row.number}: there is no part {part}"


def has_part(part: str) -> bool:
    """True if a public name, a file below kinformer, or a name in such a file exists."""
    if ".py" not in part:
        return part in public_parts()
    name = part.partition(":")[2]
    return part_file(part).is_file() and (not name or name in names_in(part_file(part)))


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """The functions and classes at the top level of a file."""
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef))


def check_members(rows: RowTable) -> Iterator[str]:
    """Each member exists, and it has the keywords and takes their values."""
    for row in rows.rows:
        for member in row.members:
            if message := refused(member):
                yield f"row {row.number}: {member}: {message}"


@functools.cache
def refused(member: str) -> str:
    """The message of the command line that refuses a member and its keywords; "" if it takes them."""
    name, *keywords = shlex.split(member)
    try:
        parse_keywords(find_member(name), keywords)
    except (ImportError, LookupError, TypeError, ValueError) as error:
        return str(error)
    return ""


def check_tests(rows: RowTable) -> Iterator[str]:
    """Each test function exists, and its file is about a part or a member of the row."""
    for row in rows.rows:
        for test in (*row.tests, *row.peers):
            file, _, name = test.partition("::")
            if not (TESTS / file).is_file():
                yield f"row {row.number}: there is no file tests/{file}"
            elif name not in names_in(TESTS / file) or not name.startswith("test_"):
                yield f"row {row.number}: there is no test {name} in tests/{file}"
            elif not is_about(TESTS / file, row):
                yield f"row {row.number}: tests/{file} names no part and no member of the row"


def is_about(file: Path, row: Row) -> bool:
    """True if a file has the name of a part, of a part's file or of a member of the row."""
    parts = [part for part in row.parts if has_part(part)]
    words = {*(part.rpartition(":")[2] for part in parts), *(part_file(part).stem for part in parts)}
    words |= {*map(member_name, row.members)}
    return not words.isdisjoint(words_of(file))


@functools.cache
def words_of(file: Path) -> frozenset[str]:
    """The words of a file."""
    return frozenset(re.findall(r"\w+", file.read_text(encoding="utf-8")))


def check_goldens(rows: RowTable) -> Iterator[str]:
    """A test reads each golden, and each golden and each peer of tests/parity has a row."""
    used = {golden for row in rows.rows for golden in row.goldens}
    for row in rows.rows:
        for golden in row.goldens:
            if golden not in golden_readers():
                yield f"row {row.number}: no test of tests/parity reads the golden {golden}"
    for golden in sorted(golden_readers().keys() - used):
        yield f"no row has the golden {golden}: add it to `goldens` of its row in {DATA.name}. {WRITE}"
    with_goldens = {file for files in golden_readers().values() for file in files} | {PARITY / "test_goldens.py"}
    peers = {TESTS / peer.partition("::")[0] for row in rows.rows for peer in row.peers}
    for file in sorted(set(PARITY.glob("test_*.py")) - with_goldens - peers):
        yield f"no row has the peer parity/{file.name}: add a test of it to `peers` of its row in {DATA.name}. {WRITE}"


def check_claims(rows: RowTable) -> Iterator[str]:
    """Each claim of a row exists, and each claim has a row."""
    known, used = files_of("claims"), {claim for row in rows.rows for claim in row.claims}
    for row in rows.rows:
        yield from (f"row {row.number}: there is no claim {claim}" for claim in row.claims if claim not in known)
    for claim in sorted(known.keys() - used):
        numbers = ", ".join(map(str, rows_of_claim(rows, claim))) or "unknown"
        yield (
            f'no row has the claim {claim}: add claims = ["{claim}"] to its row in docs/{DATA.name}, and remove '
            f"`reasons.claim` of this row. The rows of its paper are {numbers}. {WRITE}"
        )


def rows_of_claim(rows: RowTable, claim: str) -> list[int]:
    """The rows with a part or a member from a paper that the claim has as its source."""
    urls = {paper.url for paper in citations(constant(files_of("claims")[claim], "SOURCE"))}
    entries = [entry for entry in papers() if entry.citation.url in urls]
    places = {place for entry in entries for place in (*entry.parts, *(f"members/{name}" for name in entry.members))}
    return [row.number for row in rows.rows if not places.isdisjoint(places_of(row))]


def places_of(row: Row) -> set[str]:
    """The files of the parts and members of a row, by kind and name."""
    parts = {part_place(part) for part in row.parts if has_part(part)}
    return parts | {f"members/{member_name(member)}" for member in row.members}


@functools.cache
def papers() -> list[PaperEntry]:
    """The papers of the library with their parts, read once."""
    return list_papers()


def check_blanks(rows: RowTable) -> Iterator[str]:
    """Each empty cell has a reason, and no other cell has."""
    for row in rows.rows:
        for cell, entries in row.cells.items():
            if not entries and not rows.reason(row, cell):
                yield f"row {row.number} has no {cell}: add one, or reasons.{cell} with the reason"
            if entries and cell in row.reasons:
                yield f"row {row.number} has a {cell} now: remove reasons.{cell}"
        for cell in row.reasons.keys() - row.cells.keys():
            yield f"row {row.number}: reasons.{cell} is of no cell; the cells are {', '.join(row.cells)}"


def check_nothing_is_left_out(rows: RowTable) -> Iterator[str]:
    """Each member and each file of a part has a row, or a reason why it has none."""
    used = {place for row in rows.rows for place in places_of(row)}
    for kind in all_kinds():
        for place in (f"{kind}/{name}" for name in files_of(kind)):
            reason = rows.without_row.get(place) or rows.without_row.get(kind)
            if place not in used and not reason:
                field = "members" if kind == "members" else "parts"
                yield (
                    f"no row has {place}: add it to `{field}` of its row in docs/{DATA.name}, or to [without_row] with "
                    f"a reason. {WRITE}"
                )
            if place in used and reason:
                yield f"[without_row] has {place}, but a row has it: remove it from [without_row]"


@functools.cache
def all_kinds() -> tuple[str, ...]:
    """The kinds of parts, with and without EXAMPLES."""
    return tuple(dict.fromkeys((*kinds(), *UNJUDGED)))


def check_exceptions(rows: RowTable) -> Iterator[str]:
    """Exceptions name things that exist."""
    places = {f"{kind}/{name}" for kind in all_kinds() for name in files_of(kind)} | {*all_kinds()}
    used = {part for row in rows.rows for part in row.parts}
    yield from (f"[without_row]: there is no {place}" for place in rows.without_row if place not in places)
    yield from (f"[apart]: no row has the part {part}" for part in rows.apart if part not in used)
    written = {text for row in rows.rows for text in row.reasons.values()}
    yield from (f"[reasons]: no row has the reason {name}" for name in rows.reasons if name not in written)


def check_floor(rows: RowTable) -> Iterator[str]:
    """The rows together have no fewer entries than before."""
    for cell, fewest in FEWEST.items():
        count = sum(len(row.cells[cell]) for row in rows.rows)
        if count < fewest:
            yield f"the rows have {count} entries for {cell}, fewer than {fewest}: restore what is missing"
