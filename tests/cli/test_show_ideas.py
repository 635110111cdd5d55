"""`kinformer show` of ideas: their pages, figures, and the keys of one query."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kinformer.cli.__main__ import run
from kinformer.cli.support.query_keys import position_ranges, query_lines
from kinformer.core.pattern_parser import parse
from kinformer.lab.errors import UserError
from kinformer.members.gpt import gpt
from kinformer.members.longformer_lm import longformer_lm
from kinformer.members.reformer import reformer
from kinformer.pages.idea import SECTIONS


def run_show(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["show", *words]) == 0
    return capsys.readouterr().out


def test_a_page_explains_before_it_lists_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "lsh", "--length", "8")
    lines = out.splitlines()
    places = [lines.index(title) for title in SECTIONS if title not in ("Sources", "Answers")]
    assert all(first < second for first, second in pairwise(places))
    assert lines.index("Sources") < lines.index("Answers") < out[: out.index("LSH(heads, k_dim")].count("\n")
    assert "5 dog 40" in out
    assert "65,536" in out


def test_a_name_of_a_paper_leads_to_the_idea_and_lists_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "angular", "hashing")
    assert out.startswith("LSH attention (Reformer)\n")
    assert "mechanisms/lsh_published" in out.rpartition("members and parts")[2]


def test_figures_are_printed_and_written_without_the_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "lsh.svg"
    out = run_show(capsys, "lsh", "--figure", "--out", str(file))
    assert "5 dog 40" in out
    assert "Worked example" not in out
    assert "heads: int" not in out
    assert "by bucket" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "query", "length"),
    [("Causal() & (Band(3) | Strided(4))", 21, 24), ("Band(2) | Tokens(1) | Rows(1)", 9, 20), ("Strided(3)", 4, 12)],
)
def test_a_query_is_reached_as_products_of_the_matrix_say(text: str, query: int, length: int) -> None:
    pattern = parse(text)
    first, *rest = query_lines(pattern, query, length)
    assert first == f"query {query} of {length} positions: {text}"
    matrix = pattern.matrix(length).double()
    keys = matrix[query].nonzero()[:, 0].tolist()
    assert rest[0].startswith(f"  reads {len(keys)} keys: ")
    assert _positions(rest[0]) == keys
    reached, seen = {1: set(keys)}, set(keys)
    for layers in range(2, length):
        power = torch.linalg.matrix_power(matrix + torch.eye(length), layers)[query]
        further = set(power.nonzero()[:, 0].tolist()) - seen - ({query} if query in seen else set())
        if further - {query}:
            reached[layers] = further - {query}
        seen |= further
    for line in rest[1:-1]:
        layers = int(line.split()[1])
        assert set(_positions(line)) - {query} == reached[layers]
    never = set(range(length)) - seen - {query}
    assert rest[-1] == "  all positions reach it" if not never else set(_positions(rest[-1])) == never


def test_the_layers_of_a_member_are_read_from_above() -> None:
    model = longformer_lm(d=16, depth=2, heads=2, window=2, top=4, vocab=11)  # of 2 tokens, then of 4
    first, reads, further, never = query_lines(model, 20, None)
    assert "2 layers" in first
    assert _positions(reads) == [17, 18, 19, 20]
    assert further.startswith("  after 2 layers 1 further position reaches")
    assert _positions(further) == [16]
    assert _positions(never) == list(range(16))


def test_what_depends_on_content_is_refused() -> None:
    with pytest.raises(UserError, match="chooses keys by the content of tokens"):
        list(query_lines(reformer(d=16, depth=2, heads=2), 3, None))
    with pytest.raises(UserError, match="lies outside a row of 4 positions"):
        list(query_lines(gpt(d=16, depth=1, heads=2), 4, 4))
    with pytest.raises(UserError, match="needs a pattern"):
        list(query_lines(torch.nn.Linear(2, 2), 0, None))


def test_ranges_of_positions_are_short() -> None:
    assert position_ranges([]) == "none"
    assert position_ranges([0, 4, 8, 9, 10]) == "0, 4, 8-10"
    assert position_ranges([1, 4, 7, 10, 20]) == "1 to 10 by 3, 20"


def _positions(line: str) -> list[int]:
    """The positions that the end of a line lists."""
    positions: list[int] = []
    for text in line.rpartition(": ")[2].split(", "):
        if "by" in text:
            first, _, last, _, step = text.split()
            positions += range(int(first), int(last) + 1, int(step))
        elif text != "none":
            first, _, last = text.partition("-")
            positions += range(int(first), int(last or first) + 1)
    return positions
