"""Each pattern against its definition, written out pair by pair in plain Python."""

import pytest
import torch

from kinformer.core.pattern import Heads
from kinformer.discover import modules
from kinformer.patterns.band import Band
from kinformer.patterns.block import Block
from kinformer.patterns.blocks import Blocks
from kinformer.patterns.blockwise import Blockwise
from kinformer.patterns.causal import Causal
from kinformer.patterns.columns import Columns
from kinformer.patterns.dilated import Dilated
from kinformer.patterns.document import Document
from kinformer.patterns.fixed import Fixed
from kinformer.patterns.full import Full
from kinformer.patterns.marked import Marked, MarkedKeys, MarkedRows
from kinformer.patterns.own_segment import OwnSegment
from kinformer.patterns.prefix import Prefix
from kinformer.patterns.random import Random
from kinformer.patterns.rows import Rows
from kinformer.patterns.segment import Segment
from kinformer.patterns.shifted import Shifted
from kinformer.patterns.since import Since
from kinformer.patterns.strided import Strided
from kinformer.patterns.tokens import Tokens

L = 17
IDS = [0] * 4 + [3] * 6 + [1] * 7
MARKS = [i in (2, 9) for i in range(L)]
FIRST = [0] * 5 + [5] * 12
DEFINITIONS = {
    Full(): lambda i, j: True,
    Causal(): lambda i, j: j <= i,
    Band(3): lambda i, j: i - 3 <= j <= i + 3,
    Band(3, 1): lambda i, j: i - 3 <= j <= i + 1,
    Band(0, 5): lambda i, j: i <= j <= i + 5,
    Dilated(2, 3): lambda i, j: (i - j) % 3 == 0 and abs(i - j) <= 6,
    Strided(4): lambda i, j: (i - j) % 4 == 0,
    Columns(5, 2, 1): lambda i, j: 5 - 1 - 2 <= j % 5 < 5 - 1,
    Fixed(5, 2): lambda i, j: j // 5 == i // 5 or 3 <= j % 5 < 5,
    Tokens(2): lambda i, j: j < 2,
    Tokens((1, 7)): lambda i, j: j in (1, 7),
    Rows(2): lambda i, j: i < 2,
    Rows((1, 7)): lambda i, j: i in (1, 7),
    Blocks(((0,), (2, 1)), 3): lambda i, j: j // 3 in {0: (0,), 1: (2, 1)}.get(i // 3, ()),
    Block(4, 1, 2): lambda i, j: i // 4 - 1 <= j // 4 <= i // 4 + 2,
    Blockwise((2, 0, 1), 4): lambda i, j: i // 4 < 3 and j // 4 == (2, 0, 1)[i // 4],
    Segment(4, 3): lambda i, j: j >= (i // 4) * 4 - 3,
    Prefix(5): lambda i, j: j < 5,
    Document(torch.tensor([IDS])): lambda i, j: IDS[i] == IDS[j],
    MarkedKeys(torch.tensor([MARKS])): lambda i, j: MARKS[j],
    MarkedRows(torch.tensor([MARKS])): lambda i, j: MARKS[i],
    Marked(torch.tensor([MARKS])): lambda i, j: MARKS[i] or MARKS[j],
    Since(torch.tensor([FIRST])): lambda i, j: j >= FIRST[i],
    Shifted(Causal() & Band(2), 3): lambda i, j: i >= 3 and j >= 3 and i - 2 <= j <= i,
    Shifted(Tokens(2), 3): lambda i, j: i >= 3 and 3 <= j < 5,
    OwnSegment(torch.tensor([[0, 1, 2, *IDS[:14]]]), 3): lambda i, j: i >= 3 or j < 3 or i == IDS[j - 3],
}


@pytest.mark.parametrize("pattern", DEFINITIONS, ids=repr)
def test_definition(pattern):
    naive = [[DEFINITIONS[pattern](i, j) for j in range(L)] for i in range(L)]
    assert pattern.matrix(L).tolist() == naive


def test_every_pattern_file_has_its_definition_here():
    defined = {type(pattern).__module__ for pattern in DEFINITIONS} | {Random.__module__}
    assert defined == {module.__name__ for module in modules("patterns").values()}


@pytest.mark.parametrize("keys", [1, 2, 4])
@pytest.mark.parametrize("block", [1, 3])
def test_random_draws_without_repetition_from_the_past_blocks(keys, block):
    pattern = Random(keys, block, seed=7)
    for h in range(3):
        m = pattern.matrix(30, h=h)
        for i in range(30):
            drawn = {j // block for j in range(30) if m[i, j]}
            assert len(drawn) == min(keys, i // block + 1)
            assert max(drawn) <= i // block
            assert m[i].sum() == block * len(drawn)


def test_random_is_uniform_and_differs_by_head_and_seed():
    m = torch.stack([Random(3, seed=seed).matrix(20)[19] for seed in range(400)]).double()
    assert (m.mean(0) - 3 / 20).abs().max() < 5 * (0.15 * 0.85 / 400) ** 0.5
    assert not torch.equal(Random(2).matrix(40, h=0), Random(2).matrix(40, h=1))
    assert not torch.equal(Random(2, seed=1).matrix(40), Random(2, seed=2).matrix(40))


def test_random_does_not_depend_on_the_length():
    assert torch.equal(Random(2).matrix(40)[:15, :15], Random(2).matrix(15))


def test_random_symmetric_is_the_or_with_its_transpose():
    m, both = Random(2, 2).matrix(20), Random(2, 2, symmetric=True).matrix(20)
    assert torch.equal(both, m | m.T)


def test_heads_take_their_patterns_in_turn():
    pattern = Heads(Causal(), Band(1), Full())
    for h in range(7):
        assert torch.equal(pattern.matrix(9, h=h), (Causal(), Band(1), Full())[h % 3].matrix(9))


def test_patterns_of_a_batch_are_nothing_beyond_their_tensor():
    at = torch.arange(3, 6)
    assert Document(torch.zeros(1, 4, dtype=torch.long))(0, 0, at, 0).tolist() == [True, False, False]
    assert MarkedKeys(torch.ones(1, 4, dtype=torch.bool))(0, 0, 0, at).tolist() == [True, False, False]
    assert Since(torch.zeros(1, 4, dtype=torch.long))(0, 0, at, 0).tolist() == [True, False, False]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Strided(0),
        lambda: Columns(4, 5),
        lambda: Block(0),
        lambda: Blockwise((0, 0), 2),
        lambda: Segment(0, 1),
        lambda: Heads(),
    ],
)
def test_a_pattern_that_makes_no_sense_says_why(wrong):
    with pytest.raises(ValueError, match=r"must|got"):
        wrong()
