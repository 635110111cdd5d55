"""parts: the layouts that the family's usual expressions are read in, and what they cost."""

from dataclasses import dataclass

import pytest
import torch

from kinformer.attend.pattern_parts import parts
from kinformer.core.layout import INF, Dense, GatheredKeys, GatheredRows, Near, Residue
from kinformer.core.pattern import Heads, Pattern, Spelled
from kinformer.core.patterns.blocks import Blocks
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.on_heads import OnHeads
from kinformer.core.patterns.segment import Segment
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.fixed import Fixed
from kinformer.nn.patterns.image_2d import Image2D
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.shifted import Shifted
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens

C, L = Causal(), 640
USUAL = [
    (C & (Band(16) | Strided(16)), [Near(16, 0), Residue(16, INF, 0)]),
    (C & Fixed(16, 2), [Near(15, 0), GatheredKeys((14, 15), 16, INF, 0)]),
    (C & (Band(16) | Tokens(4)), [Near(16, 0), GatheredKeys((0, 1, 2, 3), None, INF, 0)]),
    (Band(16) | Tokens(2) | Rows(2), [Near(16, 16), GatheredKeys((0, 1), None, INF, 1), GatheredRows((0, 1), 1, INF)]),
    (C & Segment(32, 16), [Near(47, 0)]),
    (C & (Band(512) & Strided(128)), [Residue(128, 512, 0)]),
    (C & Shifted(Fixed(16, 2), 3), [Near(15, 0), GatheredKeys((1, 2), 16, INF, 0)]),
    (Shifted(Band(4) & ~Tokens(1), 2) | Tokens(2), [Near(4, 4), GatheredKeys((0, 1), None, INF, 1)]),
    (Image2D(160, (1, 2), (1, 2)), [Near(163, -157), Near(3, 0)]),  # a window in the row above, and the own row
]


@pytest.mark.parametrize(("pattern", "layouts"), USUAL, ids=[str(pattern) for pattern, _ in USUAL])
def test_layouts_and_cost(pattern, layouts):
    pieces = parts(pattern, L)
    assert [part.layout for part in pieces] == layouts
    read = sum(part.layout.pairs(L) for part in pieces)
    assert read <= 2 * int(pattern.matrix(L).sum())
    assert torch.equal(sum(part.where.matrix(L).long() for part in pieces), pattern.matrix(L).long())


@pytest.mark.parametrize(
    "pattern",
    [
        C,
        Full(),
        ~Band(3),
        Heads(Band(3), C),
        Band(3) | ~Strided(4),
        Random(2),
        C & (Band(3) | Blocks(((0,), (1, 2)), 4)),
    ],
    ids=str,
)
def test_no_sparse_layout_is_one_dense_part(pattern):
    (part,) = parts(pattern, L)
    assert isinstance(part.layout, Dense) and part.where == pattern


@dataclass(frozen=True)
class Named(Spelled):
    """A name for a name."""

    width: int

    @property
    def expression(self) -> Pattern:
        return Fixed(self.width, 1)


def test_a_name_that_spells_a_name_has_the_parts_of_what_it_spells():
    for named, spelled in ((Named(16), Fixed(16, 1)), (C & Named(16), C & Fixed(16, 1)), (~~Named(8), Fixed(8, 1))):
        named_parts, spelled_parts = parts(named, L), parts(spelled, L)
        assert [part.layout for part in named_parts] == [part.layout for part in spelled_parts]
        assert not any(isinstance(part.layout, Dense) for part in named_parts)
        assert torch.equal(sum(part.where.matrix(L).long() for part in named_parts), named.matrix(L).long())


def test_heads_are_parts_for_each_turn():
    """Disjoint in every head, and each in the layout of its own pattern."""
    pattern = C & Heads(Band(16), Strided(16))
    pieces_by_turn = parts(pattern, L)
    assert [part.layout for part in pieces_by_turn] == [Near(16, 0), Residue(16, INF, 0)]
    for h in range(4):
        pieces = [part.where.matrix(L, h=h) for part in pieces_by_turn]
        assert torch.equal(sum(piece.long() for piece in pieces), pattern.matrix(L, h=h).long())
        assert [bool(piece.any()) for piece in pieces] == [h % 2 == 0, h % 2 == 1]
    assert [part.layout for part in parts(Heads(Band(3), OnHeads(0, 2) & Band(5)), L)] == [Near(3, 3), Near(5, 5)]


@pytest.mark.parametrize(
    "pattern", [pattern for pattern, _ in USUAL] + [C, Named(4), Heads(Rows(2), Tokens(1))], ids=str
)
def test_a_row_of_no_tokens_has_parts_too(pattern):
    pieces = parts(pattern, 0)
    assert pieces and all(part.layout.keys_per_query(0) == 0 and part.layout.pairs(0) == 0 for part in pieces)


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize(
    "layout",
    [Near(3, 1), Residue(4, 9, 0), GatheredKeys((1, 4), 5), GatheredKeys((0, 3)), GatheredRows((2, 5)), Dense(2, 9)],
    ids=str,
)
def test_a_moved_layout_holds_the_moved_pairs(layout, n):
    at = torch.arange(30)
    unmoved = layout.reads(at[:, None], at).expand(30, 30)
    moved_pairs = layout.shift(n).reads(at[:, None] + n, at + n).expand(30, 30)
    assert torch.equal(moved_pairs, unmoved)


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
    [
        Near(3, 1),
        Residue(4, 9, 0),
        GatheredKeys((1, 2), 5, INF, 0),
        GatheredKeys((0, 3)),
        GatheredRows((2, 5)),
        Dense(INF, 0),
        Dense(),
    ],
    ids=str,
)
def test_keys_per_query_is_about_the_pairs_read(layout):
    exact = layout.pairs(400) / 400
    assert layout.keys_per_query(400) == pytest.approx(exact, rel=0.3)
