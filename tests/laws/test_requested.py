"""A command line that names parts has only these parts collected, and a broken law fails with its finding alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from kinformer.laws.support.verdicts import Verdict
from tests.laws.requested import requested_parts
from tests.laws.test_every_part import conclude

FILE = "test_every_part.py"


def command(*args: str, keyword: str = "") -> Any:
    return SimpleNamespace(args=args, option=SimpleNamespace(keyword=keyword))


@pytest.mark.parametrize(
    ("keyword", "parts"),
    [
        ("peek and SplitHeads", []),
        ("peek and patterns.band", ["patterns.band"]),
        ("peek and PATTERNS.Band", ["patterns.band"]),
        ("peek-patterns.band.3", ["patterns.band"]),
        ("chunk and (compressive.0 or nothing)", ["memories.compressive"]),
        ("executors.masked", ["executors.masked"]),
        ("peek", []),
        ("peek or patterns.band", []),
        ("patterns.band and not peek", []),
        ("", []),
    ],
)
def test_a_keyword_chooses_the_files_that_it_may_select(keyword: str, parts: list[str]) -> None:
    assert requested_parts(command(f"tests/laws/{FILE}", keyword=keyword), FILE) == parts


@pytest.mark.parametrize(
    ("paths", "parts"),
    [
        ([f"tests/laws/{FILE}::test_law[own_weights-members.gpt.12]"], ["members.gpt"]),
        (
            [f"{FILE}::test_what_no_law_speaks_of[depth.distilled.0]", "tests/core/test_read.py::test"],
            ["depth.distilled"],
        ),
        (
            [f"{FILE}::test_law[impl-executors.masked]", f"{FILE}::test_law[peek-patterns.band.0]"],
            ["executors.masked", "patterns.band"],
        ),
        ([f"{FILE}::test_law[impl-executors.masked]", "tests/laws"], []),
        ([f"{FILE}::test_law"], []),
        (["tests"], []),
    ],
)
def test_a_node_id_chooses_its_file(paths: list[str], parts: list[str]) -> None:
    assert requested_parts(command(*paths), FILE) == parts


def test_a_broken_law_fails_with_its_finding_first() -> None:
    broken = Verdict("peek", "patterns.band.0", "broken", "it reads ahead")
    with pytest.raises(pytest.fail.Exception) as failure:
        conclude(broken, lambda name, value: None)
    assert not failure.value.pytrace
    assert str(failure.value).splitlines() == ["it reads ahead", "peek judged patterns.band.0"]
