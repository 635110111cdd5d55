"""Patterns together: claims of expressions, paths of several layers, and tensors of a batch."""

from pathlib import Path

import pytest
import torch

from kinformer.core.discover import modules
from kinformer.core.pattern import Heads
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.on_heads import OnHeads
from kinformer.core.patterns.segment import Segment
from kinformer.laws.support.input_batch import map_tensors
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.columns import Columns
from kinformer.nn.patterns.dilated import Dilated
from kinformer.nn.patterns.fixed import Fixed
from kinformer.nn.patterns.marked import Marked, MarkedKeys
from kinformer.nn.patterns.own_segment import OwnSegment
from kinformer.nn.patterns.pieces import Pieces
from kinformer.nn.patterns.published_random import PublishedRandom
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.shifted import Shifted
from kinformer.nn.patterns.since import Since
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens

TESTS = Path(__file__).parents[2]
L = 17
IDS = [0] * 4 + [3] * 6 + [1] * 7
MARKS = [i in (2, 9) for i in range(L)]
FIRST = [0] * 5 + [5] * 12


def test_every_pattern_file_has_a_test_file_of_its_name() -> None:
    """A test file compares its pattern with a definition in plain Python: see compare.py."""
    for module in modules("patterns").values():
        storey, name = module.__name__.split(".")[1], module.__name__.rpartition(".")[2]
        text = (TESTS / storey / "patterns" / f"test_{name}.py").read_text(encoding="utf-8")
        assert f"from {module.__name__} import" in text and "pytest.raises(AssertionError" in text


def test_heads_take_their_patterns_in_turn():
    pattern = Heads(Causal(), Band(1), Full())
    for h in range(7):
        assert torch.equal(pattern.matrix(9, h=h), (Causal(), Band(1), Full())[h % 3].matrix(9))


def test_patterns_of_a_batch_are_nothing_beyond_their_tensor():
    at = torch.arange(3, 6)
    assert Document(torch.zeros(1, 4, dtype=torch.long))(0, 0, at, 0).tolist() == [True, False, False]
    assert MarkedKeys(torch.ones(1, 4, dtype=torch.bool))(0, 0, 0, at).tolist() == [True, False, False]
    assert Since(torch.zeros(1, 4, dtype=torch.long))(0, 0, at, 0).tolist() == [True, False, False]


def steps(pattern, length):
    """How many layers of one pattern until every position knows of every other that it may ever know of."""
    reads = pattern.matrix(length).double()
    reachable, count = torch.eye(length, dtype=torch.double), 0
    while not torch.equal(wider := (reads @ reachable + reachable).clamp_max(1), reachable):
        reachable, count = wider, count + 1
    return count, reachable.bool()


def test_random_blocks_shorten_paths():
    """Claim of Zaheer et al., section 2: paths of logarithmic length, where a window alone takes as many as it has."""
    n, window = 64, Block(1, 1, 1)
    assert steps(window, n)[0] == n - 1
    count, reachable = steps(window | Random(3, symmetric=True, first=1, back=2), n)
    assert reachable.all() and count <= 6  # 64 is 2 to the 6th
    assert steps(window | PublishedRandom(3), n)[0] > n // 2  # nobody draws the later blocks; global ones lead there


@pytest.mark.parametrize("pattern", [Band(6) | Strided(6), Fixed(6, 1), Fixed(6, 2, 1)])
def test_two_steps_of_a_sparse_transformer_reach_all_that_was_before(pattern):
    """Child et al., section 4.2: any position is reached in as many steps as there are factors."""
    reads = (Causal() & pattern).matrix(40).double()
    reached = (reads @ reads + reads) > 0
    at = torch.arange(40)
    past = at <= at[:, None]
    if isinstance(pattern, Fixed):  # what stands behind its block's summary is seen in its own block alone
        past = past & ((at % 6 < 6 - pattern.offset) | (at // 6 == (at // 6)[:, None]))
    assert torch.equal(reached, past)


@pytest.mark.parametrize(
    ("pattern", "period"),
    [
        (Causal() & Band(4) & Strided(3), 1),
        (Dilated(2, 3), 1),
        (Causal() & (Block(4) | Columns(6, 1)), 12),
        (~Block(4), 4),
        (Heads(Fixed(4, 1), Segment(6, 2), Causal()), 12),
        (Columns(5, 5), 1),
        (Causal() & Tokens(2), None),
        (~Tokens(2), None),
        (Heads(Causal(), Random(2)), None),
        (Shifted(Causal(), 2), None),
        (Document(torch.tensor([IDS])) | Causal(), None),
    ],
    ids=repr,
)
def test_a_period_is_that_of_all_its_operands(pattern, period):
    assert pattern.period() == period


def test_a_head_of_its_own_reads_what_it_read():
    """`of_head` takes Heads apart at every depth, and fixes draws."""
    pattern = Causal() & Heads(Band(2), OnHeads(1, 3) | Random(2, head=4), Shifted(Random(1, 2), 2) & ~Tokens(2))
    for h in range(6):
        head_pattern = pattern.of_head(h)
        assert all(torch.equal(head_pattern.matrix(20, h=other), pattern.matrix(20, h=h)) for other in range(4))
    assert (Causal() & Heads(Band(2), Full())).of_head(2) == Causal() & Band(2)
    assert Random(2).of_head(3) == Random(2, head=3) == Random(2, head=3).of_head(1)


def test_blocks_that_a_head_draws_are_found_many_at_a_time():
    """What an executor asks of 4,096 blocks of pairs: `cover` says of each what its pairs say."""
    at = torch.arange(0, 256, 4)
    for pattern in (Random(2, 4), Random(2, 4, symmetric=True, first=1, back=1), PublishedRandom(3, 4), Random(1, 2)):
        m = pattern.matrix(256, h=5).unflatten(1, (64, 4)).unflatten(0, (64, 4)).transpose(1, 2).flatten(2)
        any_read, every = pattern.of_head(5).cover(at[:, None], at[:, None] + 3, at, at + 3)
        assert torch.equal(any_read, m.any(2)) and torch.equal(every, m.all(2))


PAIR = Document(torch.tensor([IDS])) & ~MarkedKeys(torch.tensor([MARKS]))


@pytest.mark.parametrize(
    "pattern",
    [
        PAIR,
        Causal() & PAIR,
        Shifted(PAIR, 2) | Band(1),
        Heads(Causal(), PAIR, Since(torch.tensor([FIRST]))),
        Marked(torch.tensor([MARKS])) & Heads(Band(2), Full()),
        OwnSegment(torch.tensor([IDS]), 2),
        Pieces(3, l2l=Document(torch.tensor([IDS])), g2l=MarkedKeys(torch.tensor([MARKS]))),
    ],
    ids=range(7),
)
def test_tensors_of_the_batch_can_be_replaced_one_by_one(pattern):
    """map_tensors replaces each, at every depth, and leaves the pattern as it was."""
    tensors = pattern.tensors()
    before = [pattern.matrix(L, h=h) for h in range(3)]
    same = map_tensors(pattern, torch.clone)
    other = map_tensors(pattern, lambda tensor: tensor.flip(1))
    assert tensors and same.tensors().keys() == other.tensors().keys() == tensors.keys()
    for h in range(3):
        assert torch.equal(same.matrix(L, h=h), before[h]) and torch.equal(pattern.matrix(L, h=h), before[h])
    assert all(torch.equal(other.tensors()[name], tensor.flip(1)) for name, tensor in tensors.items())
    assert any(not torch.equal(other.matrix(L, h=h), before[h]) for h in range(3))
    for name in tensors:  # each of them alone reaches the set
        only = map_tensors(pattern, lambda tensor, name=name: tensor.flip(1) if tensor is tensors[name] else tensor)
        assert [n for n, t in only.tensors().items() if t is not tensors[n]] == [name]


def test_a_pattern_without_tensors_stays_the_same():
    pattern = Causal() & Heads(Band(3), Full())
    assert pattern.tensors() == {} and map_tensors(pattern, torch.zeros_like) == pattern


def test_the_matrix_of_a_row_is_that_rows():
    ids = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    for b in range(2):
        assert torch.equal(Document(ids).matrix(4, b=b), ids[b][:, None] == ids[b])


def test_python_s_own_and_or_and_not_are_refused() -> None:
    """`Causal() and Band(3)` would be Band(3) alone, which reads ahead."""
    for join in (lambda: Causal() and Band(3), lambda: Causal() or Band(3), lambda: not Causal()):
        with pytest.raises(TypeError, match="combine patterns with &, | and ~"):
            join()
