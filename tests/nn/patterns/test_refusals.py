"""Patterns that make no sense are refused in one line."""

import re
from inspect import signature

import pytest
import torch

from kinformer.core.discover import modules
from kinformer.core.pattern import Heads, Not, Pattern
from kinformer.core.patterns.blocks import Blocks
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.on_heads import OnHeads
from kinformer.core.patterns.segment import Segment
from kinformer.nn.patterns.axial import Axial
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.blockwise import Blockwise
from kinformer.nn.patterns.columns import Columns
from kinformer.nn.patterns.dilated import Dilated
from kinformer.nn.patterns.fixed import Fixed
from kinformer.nn.patterns.grid import Grid
from kinformer.nn.patterns.image_1d import Image1D
from kinformer.nn.patterns.image_2d import Image2D
from kinformer.nn.patterns.marked import Marked, MarkedKeys, MarkedRows
from kinformer.nn.patterns.own_segment import OwnSegment
from kinformer.nn.patterns.pair_mask import PairMask
from kinformer.nn.patterns.pieces import Pieces
from kinformer.nn.patterns.prefix import Prefix
from kinformer.nn.patterns.published_random import PublishedRandom
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.row_random import RowRandom
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.shifted import Shifted
from kinformer.nn.patterns.since import Since
from kinformer.nn.patterns.star import Star
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tail import Tail, TailKeys, TailRows
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.patterns.tree import Tree
from kinformer.nn.patterns.tree_level import TreeLevel
from tests.unhooked import refusals, unhooked

WHOLE = "give a whole number"
WRONG = [
    (lambda: Band(-3), "contains no key"),
    (lambda: Band(1, -2), "contains no key"),
    (lambda: Band(2.5), f"Band.left=2.5: {WHOLE}"),
    (lambda: Band("a"), f"Band.left='a': {WHOLE}"),
    (lambda: Band(True), f"Band.left=True: {WHOLE}"),
    (lambda: Band(2, 1.0), f"Band.right=1.0: {WHOLE}"),
    (lambda: Block(0), "Block.size=0"),
    (lambda: Block(2, 0.5), "Block.back=0.5"),
    (lambda: Block(2, -1), "contains no block"),
    (lambda: Blocks(((0,),), 0), "Blocks.size=0"),
    (lambda: Blocks([[0]]), "Blocks.table=.*a tuple of tuples"),
    (lambda: Blocks(((0,), (-1,))), r"Blocks.table\[1\]\[0\]=-1"),
    (lambda: Blockwise((0, 0), 2), "must contain each of 0..1 once"),
    (lambda: Blockwise((0, 1), 0), "Blockwise.size=0"),
    (lambda: Columns(4, 5), r"got summary \+ offset=5, expected at most block=4"),
    (lambda: Columns(4, 0), "Columns.summary=0"),
    (lambda: Columns(4, 1, -1), "Columns.offset=-1"),
    (lambda: Dilated(2, 0), f"Dilated.dilation=0: {WHOLE} of at least 1"),
    (lambda: Dilated(-1, 2), "Dilated.window=-1"),
    (lambda: Document(torch.zeros(3, dtype=torch.long)), r"Document.ids is torch.int64 of shape \[3\]"),
    (lambda: Document(torch.zeros(1, 3)), "Document.ids is torch.float32"),
    (lambda: Document([[0, 1]]), "Document.ids=.*give a tensor"),
    (lambda: Fixed(4, 5), r"got summary \+ offset=5, expected at most block=4"),
    (lambda: Fixed(0, 1), "Columns.block=0"),
    (lambda: Marked(torch.zeros(1, 3)), "Marked.mask is torch.float32.*bool"),
    (lambda: MarkedKeys(torch.zeros(1, 3, dtype=torch.long)), "MarkedKeys.mask is torch.int64"),
    (lambda: MarkedRows(torch.zeros(3, dtype=torch.bool)), "MarkedRows.mask is torch.bool of shape"),
    (lambda: OnHeads(2, 2), "OnHeads.turn=2: give a number below OnHeads.of=2"),
    (lambda: OwnSegment(torch.zeros(1, 3, dtype=torch.bool), 1), "OwnSegment.ids is torch.bool"),
    (lambda: OwnSegment(torch.zeros(1, 3, dtype=torch.long), -1), "OwnSegment.n=-1"),
    (lambda: OwnSegment(torch.zeros(1, 3, dtype=torch.long), 1, ("g2x",)), "OwnSegment.pieces='g2x' is not known"),
    (lambda: OwnSegment(torch.zeros(1, 3, dtype=torch.long), 1, "g2l"), "OwnSegment.pieces='g2l' must be a tuple of"),
    (
        lambda: PairMask(torch.ones(2, 3, dtype=torch.bool)),
        r"PairMask.mask is torch.bool of shape \[2, 3\]; give a bool",
    ),
    (lambda: PairMask(torch.ones(1, 2, 3)), "PairMask.mask is torch.float32"),
    (lambda: PairMask("causal"), "PairMask.mask is str; give a bool tensor"),
    (lambda: Pieces(-1), "Pieces.n=-1"),
    (lambda: Pieces(2, l2g="all"), "Pieces.l2g is 'all'; give a pattern"),
    (lambda: Prefix(-1), "Prefix.n=-1"),
    (lambda: PublishedRandom(0), "PublishedRandom.keys=0"),
    (lambda: PublishedRandom(2, among=1), "PublishedRandom.among=1"),
    (lambda: PublishedRandom(2, window=0.5), "PublishedRandom.window=0.5"),
    (lambda: TailKeys(torch.zeros(3, dtype=torch.long)), "TailKeys.first is torch.int64 of shape"),
    (lambda: TailRows(torch.zeros(2, 1)), "TailRows.first is torch.float32"),
    (lambda: Tail(torch.zeros(2, 3, dtype=torch.long)), "Tail.first has the wrong shape: got .*one position per row"),
    (lambda: Random(0), "Random.keys=0"),
    (lambda: Random(1, 0), "Random.block=0"),
    (lambda: Random(1, seed=0.5), "Random.seed=0.5"),
    (lambda: Random(1, symmetric="yes"), "Random.symmetric='yes': give True or False"),
    (lambda: Random(1, back=-1), "Random.back=-1"),
    (lambda: Random(1, head=-1), "Random.head=-1"),
    (lambda: PublishedRandom(1, head=0.5), "PublishedRandom.head=0.5"),
    (lambda: RowRandom(torch.ones(1, 1, dtype=torch.long), 0), "RowRandom.keys=0"),
    (lambda: RowRandom(torch.ones(1, 1, dtype=torch.long), 1, window=-2), "RowRandom.window=-2"),
    (lambda: RowRandom(torch.ones(1, 2, dtype=torch.long), 1), "RowRandom.blocks has the wrong shape"),
    (lambda: Rows((0, -1)), r"Rows.n\[1\]=-1"),
    (lambda: Segment(0, 1), "Segment.length=0"),
    (lambda: Segment(2, -1), "Segment.memory=-1"),
    (lambda: Shifted("causal", 1), "Shifted.pattern is 'causal'; give a pattern"),
    (lambda: Shifted(Causal(), -1), "Shifted.n=-1"),
    (lambda: Since(torch.zeros(1, 3)), "Since.first is torch.float32"),
    (lambda: Strided(0), "Strided.stride=0"),
    (lambda: Tokens(-1), f"Tokens.n=-1: {WHOLE} of at least 0"),
    (lambda: Tokens([1, 2]), f"Tokens.n=.*{WHOLE}"),
    (lambda: Heads(), "Heads got no pattern"),
    (lambda: Heads(Causal(), Causal), "pattern 1 of Heads is the class Causal; give a pattern"),
    (lambda: Causal() & 3, "an operand of & is 3; give a pattern"),
    (lambda: Causal() | "Band(3)", r"an operand of \| is 'Band\(3\)'; give a pattern"),
    (lambda: Causal() & Band, "is the class Band; give a pattern"),
    (lambda: Not(3), "the operand of ~ is 3"),
    (lambda: Not(torch.ones(2, 3)), r"is of the type Tensor; give a pattern, .*a mask of padding goes to Context"),
    (lambda: Star(0), "Star.n=0"),
    (lambda: Tree(0), "Tree.k=0"),
    (lambda: TreeLevel(1, -1), "TreeLevel.level=-1"),
    (lambda: Axial((), 0), r"Axial.shape=\(\) has no axis"),
    (lambda: Axial((3, 4), 2), "Axial.axis=2: give a whole number from 0 to 1"),
    (lambda: Grid(4, -1, 1), "Grid.rows=-1"),
    (lambda: Grid(4, 1, -1), "Grid.columns=-1"),
    (lambda: Grid(5, 1, 1, (1, 2)), r"width=5 is not a multiple of block\[1\]=2"),
    (lambda: Grid(4, 1, 1, (2,)), r"block=\(2,\) does not have 2 numbers"),
    (lambda: Image1D(0, 1), "Image1D.block=0"),
    (lambda: Image1D(2, -1), "Image1D.memory=-1"),
    (lambda: Image2D(4, (1, 2), (3,)), "memory must be two numbers"),
    (lambda: Image2D(4, (1, 3), (1, 1)), "width=4 is not a multiple of"),
]


def refusal_messages() -> list[str]:
    return refusals([make for make, _ in WRONG])


@pytest.mark.parametrize("n", range(len(WRONG)))
def test_a_pattern_that_makes_no_sense_says_why_in_a_line(n):
    """Also where nothing checks annotations."""
    assert re.match(f"ValueError: .*{WRONG[n][1]}", unhooked(f"{__name__}:{refusal_messages.__name__}")[n])
    assert "\n" not in unhooked(f"{__name__}:{refusal_messages.__name__}")[n]


def test_every_pattern_with_arguments_refuses_some():
    """A pattern with fields needs a line in WRONG: arguments that make no sense, and the words of its error."""
    refusing = {word for make, _ in WRONG for word in make.__code__.co_names}
    classes = {
        name
        for module in modules("patterns").values()
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Pattern)
        if kind.__module__ == module.__name__ and not name.startswith("_") and signature(kind).parameters
    }
    missing = sorted({"Heads", "Not", *classes} - refusing)
    assert not missing, f"WRONG has no call with refused arguments of {missing}. Add one for each"
