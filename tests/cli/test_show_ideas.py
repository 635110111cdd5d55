"""`kinformer show` of ideas: their pages, figures, and the keys of one query."""

import contextlib
import io
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kinformer.cli.__main__ import run
from kinformer.cli.support.console import plain_console
from kinformer.cli.support.idea_page import print_idea
from kinformer.cli.support.query_keys import _reached, position_ranges, query_lines
from kinformer.core.discover import members, modules
from kinformer.core.example import Example
from kinformer.core.pattern import Pattern, Spelled
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.on_heads import OnHeads
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.errors import UserError
from kinformer.members.bp_transformer import bp_transformer
from kinformer.members.gpt import gpt
from kinformer.members.longformer_lm import longformer_lm
from kinformer.members.performer import performer
from kinformer.members.poolingformer import poolingformer
from kinformer.members.reformer import reformer
from kinformer.members.transformer import transformer
from kinformer.members.universal_transformer import universal_transformer
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mixers.lstm import LSTM
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from kinformer.pages.idea import FOLDER, SECTIONS, all_ideas


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


@pytest.mark.parametrize("name", sorted(all_ideas()))
def test_code_is_printed_as_it_is(name: str) -> None:
    """Code from a page runs when it is copied from a pipe or a terminal of 80 columns: no line is wrapped or moved."""
    for columns, is_terminal in ((40, False), (80, True)):
        console = plain_console(file=io.StringIO(), width=columns, force_terminal=is_terminal, color_system=None)
        print_idea(all_ideas()[name], (), console)
        printed = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        section = printed[printed.index("Worked example") : printed.index("Why")]
        source = (FOLDER / f"{name}.md").read_text(encoding="utf-8").splitlines()
        fences = [row for row, line in enumerate(source) if line.startswith("```")]
        programs = [
            source[first + 1 : last] for first, last in pairwise(fences) if source[first].startswith("```python")
        ]
        outputs = [source[first + 1 : last] for first, last in pairwise(fences) if source[first].startswith("```text")]
        assert len(programs) == len(outputs) == 1
        place = section.index(programs[0][0])
        code, rest = section[place : place + len(programs[0])], section[place + len(programs[0]) :]
        assert code == programs[0] and max(map(len, code)) <= 80
        assert rest[: len(outputs[0]) + 1] == ["", *outputs[0]]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("\n".join(code), f"{name}.md", "exec"), {"__name__": "example"})
        assert output.getvalue().splitlines() == outputs[0]


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
    [
        ("Causal() & (Band(3) | Strided(4))", 21, 24),
        ("Band(2) | Tokens(1) | Rows(1)", 9, 20),
        ("Strided(3)", 4, 12),
        ("Causal() & Band(1)", 79, 80),
        ("~Full()", 5, 12),
        ("Heads(Band(0), Band(0), Band(0), Band(0), Causal())", 9, 20),
    ],
)
def test_a_query_is_reached_as_products_of_the_matrix_say(text: str, query: int, length: int) -> None:
    pattern = parse(text)
    first, *rest = query_lines(pattern, query, length)
    assert re.sub(", .* together", "", first) == f"query {query} of {length} positions: {text}"
    matrix = torch.stack([pattern.matrix(length, h=h) for h in range(20)]).any(0)
    keys = matrix[query].nonzero()[:, 0].tolist()
    assert rest[0].startswith(f"  reads {len(keys)} key{'' if len(keys) == 1 else 's'}: ")
    assert _positions(rest[0]) == keys
    power = torch.eye(length, dtype=torch.bool)[query] | matrix[query]
    reached = {1: power.clone()}
    for layers in range(2, length + 1):
        power = power | matrix[power].any(0)
        reached[layers] = power.clone()
    before = reached[1]
    for line in rest[1:-1]:
        layers = int(line.split()[1])
        further = reached[layers] & ~before
        assert _positions(line) == further.nonzero()[:, 0].tolist()
        assert f" {int(further.sum())} further position" in line
        before = reached[layers]
    assert torch.equal(before, reached[length])
    never = (~reached[length]).nonzero()[:, 0].tolist()
    assert rest[-1] == "  all positions reach it" if not never else _positions(rest[-1]) == never


def test_the_layers_of_a_member_are_read_from_above() -> None:
    model = longformer_lm(d=16, depth=2, heads=2, window=2, top=4, vocab=11)  # of 2 tokens, then of 4
    first, reads, further, never = query_lines(model, 20, None)
    assert "2 layers" in first
    assert _positions(reads) == [17, 18, 19, 20]
    assert further.startswith("  after 2 layers 1 further position reaches")
    assert _positions(further) == [16]
    assert _positions(never) == list(range(16))


def test_a_layer_that_adds_nothing_does_not_end_the_search() -> None:
    model = gpt(d=16, depth=3, heads=2, vocab=20, pattern=("Causal()", "Causal() & Block(4)", "Causal() & Block(4)"))
    _, reads, *further, never = query_lines(model, 21, 24)
    assert _positions(reads) == [20, 21]
    assert [_positions(line) for line in further] == [list(range(20))]
    assert _positions(never) == [22, 23]


@pytest.mark.parametrize("name", sorted(members()))
def test_no_token_changes_an_output_that_it_is_said_not_to_reach(name: str) -> None:
    """Keys of a query are refused, or every token that changes the output of the query is among those that reach it."""
    query, length = 12, 16
    with seeded(0):
        model = Example.from_entry(modules("members")[name].EXAMPLES[0]).make()
        try:
            lines = list(query_lines(model, query, length))
        except UserError as error:
            assert str(error).startswith("--query ")
            return
        if model.reads not in ("text", "masked"):
            return
        model.double().eval()
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        tokens = torch.randint(2, model.vocab, (1, length))
        logits = model.logits(tokens).y[0, query]
        never = set(_positions(lines[-1])) if "never" in lines[-1] else set()
        for place in {*sorted(never)[:2], *sorted(never)[-1:]}:
            changed = tokens.clone()
            changed[0, place] = (changed[0, place] - 1) % (model.vocab - 2) + 2
            torch.testing.assert_close(model.logits(changed).y[0, query], logits, rtol=0, atol=1e-12)


def test_what_does_not_follow_from_positions_is_refused() -> None:
    with pytest.raises(UserError, match="chooses keys by the content of tokens"):
        list(query_lines(reformer(d=16, depth=2, heads=2), 3, None))
    with pytest.raises(UserError, match="lies outside a row of 4 positions"):
        list(query_lines(gpt(d=16, depth=1, heads=2), 4, 4))
    with pytest.raises(UserError, match="needs a pattern"):
        list(query_lines(torch.nn.Linear(2, 2), 0, None))
    with pytest.raises(UserError, match="not every key of LinearAttention follows"):
        list(query_lines(performer(d=16, depth=2, heads=2, window=4), 3, None))
    with pytest.raises(UserError, match="read another sequence"):
        list(query_lines(transformer(d=16, depth=2, heads=2), 3, None))
    with pytest.raises(UserError, match="other positions than the tokens"):
        list(query_lines(bp_transformer(d=16, depth=2, heads=2), 3, None))
    with pytest.raises(UserError, match="not single tokens"):
        list(query_lines(poolingformer(d=16, depth=1, heads=2), 3, None))


def test_a_layer_that_is_called_again_does_not_end_the_search() -> None:
    block = [(parse(f"Causal() & Block({size})"), range(1)) for size in (2, 8)]
    near, far = [block[0]], [block[1]]
    _, *further, never = _reached([near, near, far, near], 7, 8)
    assert [_positions(line) for line in further] == [[0, 1, 2, 3, 4, 5]]
    assert never == "  all positions reach it"


def test_a_recurrent_layer_is_refused() -> None:
    layers = [PreNorm(Attention(QKV(8, 2), Softmax(parse("Causal() & Band(1)")))), PreNorm(LSTM(8))]
    with pytest.raises(UserError, match="other than attention carries a state"):
        list(query_lines(LM(11, 8, Stack(layers)), 3, None))


def test_heads_of_a_named_pattern_are_counted() -> None:
    first, reads, *_ = query_lines(OneInFive(), 9, None)
    assert "5 heads together" in first
    assert _positions(reads) == list(range(10))


@dataclass(frozen=True)
class OneInFive(Spelled):
    """The last of five heads reads all earlier keys, and the others read only their own."""

    @property
    def expression(self) -> Pattern:
        return Causal() & (Band(0) | OnHeads(4, 5))


def test_a_layer_that_is_called_twice_counts_twice() -> None:
    model = universal_transformer(d=16, depth=3, heads=2, vocab=20)
    assert next(query_lines(model, 3, 4)) == "query 3 of 4 positions; in the last of 3 layers:"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("train --query 3", "--query"),
        ("words --figure", "--figure"),
        ("lsh --figure --cost", "--cost"),
        ("lsh --figure --length 5", "--length"),
    ],
)
def test_options_without_effect_are_refused(words: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["show", *words.split()]) == 2
    assert f"{option} has no effect" in capsys.readouterr().err


def test_the_keys_of_a_member_are_those_of_its_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    drawn, _, reads, *_ = run_show(capsys, "longformer", "--query", "37").splitlines()
    assert "window=3" in drawn
    assert _positions(reads) == [0, *range(34, 41)]
    _, reads, *_ = run_show(capsys, "longformer", "window=5", "--query", "37").splitlines()
    assert _positions(reads) == [0, *range(32, 43)]


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
