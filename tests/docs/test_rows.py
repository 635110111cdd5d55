"""The table of all mechanisms, docs/rows.md, is complete, and everything that it names exists."""

import functools
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinformer as kf
import tests.rows_checks
import tests.rows_table
from kinformer.core.discover import part_files
from kinformer.lab.claims.support.claim_report import ClaimReport
from kinformer.lab.cost.free_memory import build_without_numbers
from kinformer.lab.member_choice import parse_member
from tests.members.test_reach import kinds as kinds_inside
from tests.rows_checks import problems
from tests.rows_table import LAST, PAGE, Row, RowTable, load_rows, page, public_parts, rows_that_lose, write

ROWS = load_rows()
SAMPLE = 10  # `make test` builds the models of one row in so many, `make prove` those of all


@functools.cache
def written() -> str:
    """The page as it is written today."""
    return page(ROWS)


def test_the_page_is_written_from_the_file() -> None:
    assert PAGE.read_text("utf-8") == written(), "docs/rows.md is not as written: run `python -m tests.rows_table`"


def test_everything_that_rows_name_exists_and_nothing_is_left_out() -> None:
    messages = problems(ROWS)
    assert not messages, "\n".join(messages)


NUMBERS = [pytest.param(n, marks=() if n % SAMPLE == 0 else pytest.mark.prove) for n in range(1, LAST + 1)]


@pytest.mark.parametrize("number", NUMBERS)
def test_the_models_of_a_row_hold_its_parts(number: int) -> None:
    row = ROWS.rows[number - 1]
    inside = classes_inside(row)
    if row.members:
        outside, exceptions = parts_outside(row, inside), set(ROWS.apart)
        missing, stale = sorted(outside - exceptions), sorted(exceptions & set(row.parts) - outside)
        assert not missing, f"no model of row {number} holds {missing}: add a member, or [apart] with a reason"
        assert not stale, f"the models of row {number} hold {stale}: remove them from [apart]"


def classes_inside(row: Row) -> set[Any]:
    """The classes of all models of a row; each model is built."""
    return {kind for member in row.members for kind in kinds_inside(build(member))}


def build(member: str) -> Any:
    """The model of a command line, without memory for its weights if that is possible."""
    name, *keywords = shlex.split(member)
    choice = parse_member(name, keywords)
    return build_without_numbers(choice) or choice.build(0)


def parts_outside(row: Row, inside: set[Any]) -> set[str]:
    """The parts of a row that are public names and that its models do not hold."""
    return {part for part in row.parts if part in public_parts() and getattr(kf, part) not in inside}


def test_a_part_outside_the_models_is_noticed() -> None:
    row = changed(ROWS, 45, parts=("Strided", "Fixed")).rows[44]
    assert parts_outside(row, classes_inside(row)) == {"Fixed"}


# Planted faults ------------------------------------------------------------------------------------------------------


def changed(rows: RowTable, number: int, **fields: Any) -> RowTable:
    """The table with other fields in one row."""
    return replace(rows, rows=tuple(replace(row, **fields) if row.number == number else row for row in rows.rows))


def without(rows: RowTable, cell: str, entry: str) -> RowTable:
    """The table without an entry, in all rows."""
    return replace(
        rows,
        rows=tuple(replace(row, **{cell: tuple(x for x in getattr(row, cell) if x != entry)}) for row in rows.rows),
    )


Fault = Callable[[RowTable], RowTable]
LSH = "nn/mechanisms/test_lsh.py::test_a_hash_is_the_nearest_of_rotated_axes"
FAULTS: dict[str, tuple[Fault, str]] = {
    "a missing row": (lambda rows: replace(rows, rows=rows.rows[:57] + rows.rows[58:]), "row 58 is missing"),
    "a row twice": (lambda rows: replace(rows, rows=(*rows.rows, rows.rows[57])), "row 58 occurs 2 times"),
    "a row too many": (lambda rows: replace(rows, rows=(*rows.rows, Row(131, "x"))), "row 131 does not exist"),
    "an entry twice": (lambda rows: changed(rows, 60, parts=("SharedQK", "SharedQK")), "row 60 names SharedQK twice"),
    "a removed part": (lambda rows: changed(rows, 60, parts=("SharedKV",)), "row 60: there is no part SharedKV"),
    "a removed file": (
        lambda rows: changed(rows, 129, parts=("nn/depth/no_file.py",)),
        "row 129: there is no part nn/depth/no_file.py",
    ),
    "a removed function": (
        lambda rows: changed(rows, 129, parts=("nn/losses/ppo.py:no_function",)),
        "row 129: there is no part nn/losses/ppo.py:no_function",
    ),
    "a removed member": (lambda rows: changed(rows, 60, members=("reformed",)), "row 60: reformed: there is no member"),
    "a removed keyword": (
        lambda rows: changed(rows, 60, members=("reformer round=2",)),
        "row 60: reformer round=2: the member 'reformer' has no keyword 'round'",
    ),
    "a removed value": (
        lambda rows: changed(rows, 98, members=("localness window=line",)),
        "row 98: localness window=line: ",
    ),
    "a removed test": (
        lambda rows: changed(rows, 58, tests=(f"{LSH}_no_more",)),
        "row 58: there is no test test_a_has",
    ),
    "a removed test file": (
        lambda rows: changed(rows, 58, tests=("nn/test_gone.py::test_it",)),
        "row 58: there is no file tests/nn/test_gone.py",
    ),
    "a test of another row": (lambda rows: changed(rows, 10, tests=(LSH,)), "names no part and no member of the row"),
    "a golden that nobody reads": (
        lambda rows: changed(rows, 9, goldens=("ropes",)),
        "row 9: no test of tests/parity reads the golden ropes",
    ),
    "a golden without a row": (lambda rows: without(rows, "goldens", "rope"), "no row has the golden rope: add it to"),
    "a peer without a row": (
        lambda rows: without(rows, "peers", "parity/test_hf_bloom.py::test_logits"),
        "no row has the peer parity/test_hf_bloom.py: add a test of it",
    ),
    "a removed claim": (lambda rows: changed(rows, 9, claims=("rope",)), "row 9: there is no claim rope"),
    "a claim without a row": (
        lambda rows: without(rows, "claims", "linear_transformer_steps"),
        'no row has the claim linear_transformer_steps: add claims = ["linear_transformer_steps"] to its row in '
        "docs/rows.toml, and remove `reasons.claim` of this row. The rows of its paper are 76, 77, 78",
    ),
    "an empty cell": (lambda rows: changed(rows, 11, reasons={}), "row 11 has no peer: add one, or reasons.peer"),
    "a reason of a full cell": (
        lambda rows: changed(rows, 9, reasons={"claim": "none"}),
        "row 9 has a claim now: remove reasons.claim",
    ),
    "a reason of no cell": (lambda rows: changed(rows, 9, reasons={"cost": "x"}), "row 9: reasons.cost is of no cell"),
    "a member without a row": (lambda rows: without(rows, "members", "bloom"), "no row has members/bloom: add it to"),
    "a part without a row": (
        lambda rows: without(rows, "parts", "ALiBi"),
        "no row has biases/alibi: add it to `parts`",
    ),
    "a reason for a part with a row": (
        lambda rows: replace(rows, without_row={**rows.without_row, "biases/alibi": "x"}),
        "[without_row] has biases/alibi, but a row has it",
    ),
    "a reason for a part that is gone": (
        lambda rows: replace(rows, without_row={**rows.without_row, "biases/gone": "x"}),
        "[without_row]: there is no biases/gone",
    ),
    "an exception for no part": (
        lambda rows: replace(rows, apart={**rows.apart, "Gone": "x"}),
        "[apart]: no row has the part Gone",
    ),
    "a lost entry": (lambda rows: changed(rows, 58, tests=(LSH,)), "entries for test, fewer than"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str) -> None:
    plant, message = FAULTS[fault]
    assert any(message in found for found in problems(plant(ROWS)))


def test_a_page_in_which_a_row_loses_something_is_not_written(tmp_path: Path) -> None:
    path, fewer = tmp_path / "rows.md", page(changed(ROWS, 58, tests=(LSH,)))
    write(path, written())
    with pytest.raises(SystemExit, match=r"^rows\.md was not written: rows 58 lose entries.*--fewer 58$"):
        write(path, fewer)
    assert path.read_text("utf-8") == written()
    write(path, fewer, [58])
    assert path.read_text("utf-8") == fewer


def test_a_page_in_which_an_entry_replaces_another_is_not_written_but_costs_and_verdicts_may_change(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.md"
    tests_of_row = [test for test in ROWS.rows[57].tests if test != LSH]
    replaced = changed(ROWS, 58, tests=(f"{LSH}_again", *tests_of_row))
    write(path, written())
    assert LSH in ROWS.rows[57].tests and rows_that_lose(written(), page(replaced)) == [58]
    with pytest.raises(SystemExit, match="rows 58 lose entries"):
        write(path, page(replaced))
    assert rows_that_lose(written(), page(ROWS, {})) == []
    assert rows_that_lose(written(), written().replace(" operations", " other operations")) == []


def test_a_committed_report_is_the_result_of_its_claim() -> None:
    report = ClaimReport("rope_shift", "logits stay", "Su et al., 2021", "does not hold", (), {}, 1.0, None, "torch")
    text = page(ROWS, {"rope_shift": report})
    verdict = "[**does not hold**](../kinformer/lab/claims/reports/rope_shift.json)"
    assert f"`rope_shift`](../kinformer/lab/claims/rope_shift.py): {verdict}" in line_of(text, 9)
    assert "1 does not hold" in text and f"{len(part_files('claims')) - 1} not measured" in text
    assert "**" not in line_of(page(ROWS, {}), 9) and "not measured (no report)" in line_of(page(ROWS, {}), 9)


def line_of(text: str, number: int) -> str:
    """The line of a row in the page."""
    return next(line for line in text.splitlines() if line.startswith(f'| <a id="row-{number}"></a>{number} |'))


def test_each_row_has_an_anchor_and_a_full_line() -> None:
    lines = [line for line in written().splitlines() if line.startswith("| <a")]
    assert [re.match(r'\| <a id="row-(\d+)"></a>\1 \|', line) is not None for line in lines] == [True] * LAST
    cells = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines]
    assert all(len(row) == len(tests.rows_table.HEADINGS) and all(map(str.strip, row)) for row in cells)
