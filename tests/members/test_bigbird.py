"""BigBird: the equation in its two forms, which tokens see which, and that its random blocks are its own and stay."""

from pathlib import Path
from types import ModuleType

import pytest
import torch

from kinformer.checkpoint.checkpoint import load, save
from kinformer.laws import any_length, padding
from kinformer.laws.support.verdicts import JudgedPart, verdict
from kinformer.members.bigbird import bigbird
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.random import Random
from tests.by_hand import attention_by_hand, first_read

TABLED = {"d": 16, "depth": 1, "heads": 2, "block": 2, "length": 40, "vocab": 11}
SIZES = {**TABLED, "heads": 1, "keys": 1}
LENGTH = 21


def reads(**keywords: object) -> torch.Tensor:
    """Which outputs change with which token."""
    model = bigbird(**{**SIZES, **keywords}).eval()
    tokens = torch.randint(0, 11, (1, LENGTH)).repeat(LENGTH + 1, 1)
    tokens[1:].diagonal().add_(1).remainder_(11)
    y = model.logits(tokens).y
    return ((y[1:] - y[:1]).abs().amax(-1) > 1e-7).T


def near(first: int = 0) -> torch.Tensor:
    return (Block(2, 1, 1) | Random(1, 2, 0, True, first, 2)).matrix(LENGTH)


def test_the_first_and_the_last_block_of_a_text_are_global() -> None:
    at = torch.arange(LENGTH)
    ends = (at < 2) | (at == LENGTH - 1)  # 21 tokens: the last block is of one
    assert torch.equal(reads(), near(first=1) | ends | ends[:, None])
    assert torch.equal(reads(keys=0), Block(2, 1, 1).matrix(LENGTH) | ends | ends[:, None])


def test_nodes_outside_the_text_are_seen_by_the_next_layer() -> None:
    assert torch.equal(reads(form="etc", nodes=3), near())
    assert reads(form="etc", nodes=3, depth=2).all()


@pytest.mark.parametrize("form", ["itc", "etc"])
@pytest.mark.parametrize("length", [9, 21])
def test_blocks_of_the_whole_row_are_as_many_for_each_at_every_length(form: str, length: int) -> None:
    model = bigbird(**{**SIZES, "keys": 2}, form=form, draw="row").eval()
    tokens = torch.randint(0, 11, (1, length)).repeat(length + 1, 1)
    tokens[1:].diagonal().add_(1).remainder_(11)
    y = model.logits(tokens).y
    reads = ((y[1:] - y[:1]).abs().amax(-1) > 1e-7).T
    ends = form == "itc"
    count = (length + 1) // 2
    for i in range(2 * ends, length - ends):
        candidates = {c for c in range(ends, count - ends) if abs(c - i // 2) > 1}
        chosen = {j // 2 for j in range(length) if reads[i, j]} & candidates
        assert len(chosen) == min(2, len(candidates))
        assert {j // 2 for j in range(length) if reads[i, j]} - chosen <= {0, count - 1, *range(i // 2 - 1, i // 2 + 2)}


TABLES = (((3,), (), (0, 5)), ((4, 5), (3,)))  # of two heads: the blocks that blocks 0, 1, .. read beside others
GIVEN = f"Heads(Blocks({TABLES[0]}, 2), Blocks({TABLES[1]}, 2))"


def is_drawn(h: int, i: int, j: int) -> bool:
    table = TABLES[h]
    return i // 2 < len(table) and j // 2 in table[i // 2]


def test_the_internal_construction_is_the_equation(float64: None) -> None:
    layer, x, y = first_read(bigbird(**TABLED, tables=GIVEN), torch.randint(0, 11, (1, 13)))

    def may(h: int, i: int, j: int) -> bool:  # blocks 0 .. 6, the last of one token
        return abs(i // 2 - j // 2) <= 1 or bool({i // 2, j // 2} & {0, 6}) or is_drawn(h, i, j)

    torch.testing.assert_close(y, attention_by_hand(layer, x, may))


def test_the_extended_construction_is_the_equation(float64: None) -> None:
    keywords = {**TABLED, "tables": (GIVEN,), "form": "etc", "nodes": 3}
    layer, x, y = first_read(bigbird(**keywords), torch.randint(0, 11, (1, 13)))
    assert len(x) == 3 + 13

    def may(h: int, i: int, j: int) -> bool:
        return min(i, j) < 3 or abs((i - 3) // 2 - (j - 3) // 2) <= 1 or is_drawn(h, i - 3, j - 3)

    torch.testing.assert_close(y, attention_by_hand(layer, x, may))


def test_given_tables_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    model, tokens = bigbird(**TABLED, tables=GIVEN).eval(), torch.randint(0, 11, (2, 13))
    save(model, tmp_path)
    assert torch.equal(load(tmp_path).eval().logits(tokens).y, model.logits(tokens).y)


def test_draws_differ_by_layer_and_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    model, tokens = bigbird(**{**SIZES, "depth": 2}).eval(), torch.randint(0, 11, (2, LENGTH))
    patterns = [block.layers[0].mechanism.pattern for block in model.body.layer.layers]
    assert not torch.equal(patterns[0].matrix(40), patterns[1].matrix(40))
    save(model, tmp_path)
    torch.manual_seed(1)
    loaded = load(tmp_path).eval()
    assert torch.equal(loaded.logits(tokens).y, model.logits(tokens).y)
    assert torch.equal(model.logits(tokens).y, model.logits(tokens).y)


@pytest.mark.parametrize("law", [any_length, padding])
def test_laws_with_nodes_and_the_published_draw(law: ModuleType) -> None:
    keywords = {**SIZES, "depth": 2, "heads": 2, "form": "etc", "draw": "published", "nodes": 2}
    verdict_of = verdict("law", law, JudgedPart("bigbird", lambda: bigbird(**keywords)))
    assert verdict_of is not None and verdict_of.end == "holds", verdict_of


@pytest.mark.parametrize("name", ["keys", "window", "nodes", "block"])
def test_arguments_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=-1: give a whole number of at least"):
        bigbird(**{**SIZES, "form": "etc", name: -1})


def test_what_nobody_would_read_is_refused() -> None:
    with pytest.raises(ValueError, match="nodes=3 has no effect with form=itc"):
        bigbird(**SIZES, nodes=3)
    with pytest.raises(ValueError, match="full_up_to=9 has no effect with form=etc"):
        bigbird(**SIZES, form="etc", full_up_to=9)
    with pytest.raises(ValueError, match="draw='first' repeats the first block, but form='etc' has no global blocks"):
        bigbird(**SIZES, form="etc", draw="first")
    with pytest.raises(ValueError, match="keys=1 has no effect with tables="):
        bigbird(**SIZES, tables=GIVEN)
