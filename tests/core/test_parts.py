"""parts: the layouts that the family's usual expressions are read in, and what they cost."""

import pytest
import torch

from kinformer.core.layout import INF, Dense, Keys, Near, Residue, Rows
from kinformer.core.parts import parts
from kinformer.core.pattern import Heads
from kinformer.patterns import rows, tokens
from kinformer.patterns.band import Band
from kinformer.patterns.block import Block
from kinformer.patterns.causal import Causal
from kinformer.patterns.fixed import Fixed
from kinformer.patterns.full import Full
from kinformer.patterns.segment import Segment
from kinformer.patterns.strided import Strided

C, L = Causal(), 640
USUAL = [
    (C & (Band(16) | Strided(16)), [Near(16, 0), Residue(16, INF, 0)]),
    (C & Fixed(16, 2), [Near(15, 0), Keys((14, 15), 16, INF, 0)]),
    (C & (Band(16) | tokens.Tokens(4)), [Near(16, 0), Keys((0, 1, 2, 3), None, INF, 0)]),
    (Band(16) | tokens.Tokens(2) | rows.Rows(2), [Near(16, 16), Keys((0, 1), None, INF, 1), Rows((0, 1), 1, INF)]),
    (C & Segment(32, 16), [Near(47, 0)]),
    (C & (Band(512) & Strided(128)), [Residue(128, 512, 0)]),
]


@pytest.mark.parametrize(("pattern", "layouts"), USUAL, ids=[str(pattern) for pattern, _ in USUAL])
def test_layouts_and_cost(pattern, layouts):
    found = parts(pattern, L)
    assert [part.layout for part in found] == layouts
    read = sum(part.layout.pairs(L) for part in found)
    assert read <= 2 * int(pattern.matrix(L).sum())
    assert torch.equal(sum(part.where.matrix(L).long() for part in found), pattern.matrix(L).long())


@pytest.mark.parametrize("pattern", [C, Full(), ~Band(3), Heads(Band(3), C), Band(3) | ~Strided(4)], ids=str)
def test_no_sparse_layout_is_one_dense_part(pattern):
    (part,) = parts(pattern, L)
    assert isinstance(part.layout, Dense) and part.where == pattern


def test_too_many_parts_are_one_dense_part():
    five = Block(1) | Block(2) | Block(3) | Block(4) | Block(5)
    assert len(parts(five.left, L)) == 4
    assert [type(part.layout) for part in parts(five, L)] == [Dense]


def test_too_many_terms_are_one_dense_part():
    pair = Band(1) | Strided(3)
    wide = pair & pair & pair & pair & pair
    assert [type(part.layout) for part in parts(wide, L)] == [Dense]


def test_de_morgan():
    pattern = ~(~Band(4) | ~Strided(2))
    (part,) = parts(pattern, L)
    assert part.layout == Residue(2, 4, 4)
    assert torch.equal(part.where.matrix(40), (Band(4) & Strided(2)).matrix(40))


@pytest.mark.parametrize(
    "layout",
    [Near(3, 1), Residue(4, 9, 0), Keys((1, 2), 5, INF, 0), Keys((0, 3)), Rows((2, 5)), Dense(INF, 0), Dense()],
    ids=str,
)
def test_keys_per_query_is_about_the_pairs_read(layout):
    exact = layout.pairs(400) / 400
    assert layout.keys_per_query(400) == pytest.approx(exact, rel=0.3)
