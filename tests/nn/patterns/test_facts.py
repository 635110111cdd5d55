"""Each pattern against its definition, written out pair by pair in plain Python."""

import pytest
import torch

from kinformer.core.discover import modules
from kinformer.core.pattern import Heads
from kinformer.core.patterns.blocks import Blocks
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
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
from tests.nn.patterns.test_tree import on_tree
from tests.nn.patterns.test_tree import walked as walked_tree

L = 17
IDS = [0] * 4 + [3] * 6 + [1] * 7
OWN = [0, 1, 2, *IDS[:14]]
MARKS = [i in (2, 9) for i in range(L)]
FIRST = [0] * 5 + [5] * 12
DEFINITIONS = {
    Full(): lambda i, j: True,
    Causal(): lambda i, j: j <= i,
    Band(3): lambda i, j: i - 3 <= j <= i + 3,
    Band(3, 1): lambda i, j: i - 3 <= j <= i + 1,
    Band(0, 5): lambda i, j: i <= j <= i + 5,
    Band(4, -1): lambda i, j: i - 4 <= j <= i - 1,
    Band(-2, 3): lambda i, j: i + 2 <= j <= i + 3,
    Dilated(0, 2): lambda i, j: i == j,
    Dilated(2, 3): lambda i, j: (i - j) % 3 == 0 and abs(i - j) <= 6,
    Strided(4): lambda i, j: (i - j) % 4 == 0,
    Columns(5, 2, 1): lambda i, j: 5 - 1 - 2 <= j % 5 < 5 - 1,
    Fixed(5, 2): lambda i, j: j // 5 == i // 5 or 3 <= j % 5 < 5,
    Fixed(5, 2, 1): lambda i, j: j // 5 == i // 5 or 2 <= j % 5 < 4,
    Tokens(2): lambda i, j: j < 2,
    Tokens((1, 7)): lambda i, j: j in (1, 7),
    Rows(2): lambda i, j: i < 2,
    Rows((1, 7)): lambda i, j: i in (1, 7),
    Tokens(0): lambda i, j: False,
    Tokens((7, 1, 7)): lambda i, j: j in (1, 7),
    Blocks((), 3): lambda i, j: False,
    Blocks(((), (1,)), 3): lambda i, j: i // 3 == 1 and j // 3 == 1,
    Block(3, -1, 2): lambda i, j: i // 3 + 1 <= j // 3 <= i // 3 + 2,
    OnHeads(0, 2): lambda i, j: True,
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
    Tree(2): on_tree(2),
    TreeLevel(1): lambda i, j: (0, j) in walked_tree(i, 1, 64, 1),
    TreeLevel(2, 1): lambda i, j: (1, j) in walked_tree(i, 2, 64, 1),
    TreeLevel(1, 1, causal=True): lambda i, j: 2 * j + 1 < i and (1, j) in walked_tree(i, 1, 64, 1),
    Star(): lambda i, j: i == 0 or j == 0 or abs(i - j) <= 1,
    Star(6): lambda i, j: max(i, j) <= 6 and (0 in (i, j) or abs(i - j) <= 1 or {i, j} == {1, 6}),
    Shifted(Tokens(2), 3): lambda i, j: i >= 3 and 3 <= j < 5,
    OwnSegment(torch.tensor([[0, 1, 2, *IDS[:14]]]), 3): lambda i, j: i >= 3 or j < 3 or i == IDS[j - 3],
    OwnSegment(torch.tensor([OWN]), 3, ("g2g", "l2g", "l2l")): lambda i, j: OWN[i] == OWN[j] or (i < 3 <= j),
    OwnSegment(torch.tensor([OWN]), 3, ()): lambda i, j: True,
    TailKeys(torch.tensor([[11]])): lambda i, j: j >= 11,
    TailRows(torch.tensor([[11]])): lambda i, j: i >= 11,
    Tail(torch.tensor([[11]])): lambda i, j: i >= 11 or j >= 11,
    Pieces(3): lambda i, j: True,
    Pieces(3, Causal(), Band(2), Band(0, 1), Strided(2)): lambda i, j: (
        (j <= i if j < 3 else abs(i - j + 3) <= 2) if i < 3 else i - 3 <= j <= i - 2 if j < 3 else (i - j) % 2 == 0
    ),
    Image1D(4, 3): lambda i, j: (i // 4) * 4 - 3 <= j <= i,
    Grid(5, 1, 2): lambda i, j: abs(i // 5 - j // 5) <= 1 and abs(i % 5 - j % 5) <= 2,
    Grid(6, 1, 1, (2, 3)): lambda i, j: around(i, j, 6, (2, 3), (1, 1)),
    Image2D(6, (2, 3), (1, 1)): lambda i, j: j <= i and around(i, j, 6, (2, 3), (1, 1)),
    Image2D(4, (3, 2), (2, 5)): lambda i, j: j <= i and around(i, j, 4, (3, 2), (2, 5)),
    Axial((3, 6), 0): lambda i, j: i % 6 == j % 6,
    Axial((3, 6), 1): lambda i, j: i // 6 == j // 6,
    Axial((3, 3, 2), 1): lambda i, j: (i // 6, i % 2) == (j // 6, j % 2),
}


def walked(width, block, rows):
    """The places of a picture in the order of generation, by loops over blocks and over what is in them."""
    h, w = block
    ends = range(0, rows, h), range(0, width, w)
    return [(top + r, left + c) for top in ends[0] for left in ends[1] for r in range(h) for c in range(w)]


def around(i, j, width, block, memory):
    """Is place j in the block of place i, or so many rows above and below it and columns beside it?"""
    places = walked(width, block, 6)
    at = walked(width, block, 6).index
    first = places[i][0] // block[0] * block[0], places[i][1] // block[1] * block[1]
    assert at(first) <= i
    return all(-memory[n] <= places[j][n] - first[n] < block[n] + memory[n] for n in (0, 1))


@pytest.mark.parametrize("pattern", DEFINITIONS, ids=repr)
def test_definition(pattern):
    naive = [[DEFINITIONS[pattern](i, j) for j in range(L)] for i in range(L)]
    assert pattern.matrix(L).tolist() == naive


def test_every_pattern_file_has_its_definition_here():
    drawn = {kind.__module__ for kind in (Random, PublishedRandom, RowRandom)}
    defined = {type(pattern).__module__ for pattern in DEFINITIONS} | drawn
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


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("back", [0, 1, 3])
def test_random_draws_without_what_tokens_and_window_hold(first, back):
    """All that it reads is new beside `first` blocks of tokens and a window of `back` blocks."""
    pattern = Random(2, 3, seed=7, first=first, back=back)
    m = pattern.matrix(60)
    for i in range(60):
        drawn = {j // 3 for j in range(60) if m[i, j]}
        candidates = set(range(first, i // 3 - back + 1))
        assert drawn <= candidates and len(drawn) == min(2, len(candidates))


@pytest.mark.parametrize("symmetric", [False, True])
def test_bigbird_s_draws_lie_beside_the_window_and_the_first_block(symmetric):
    """None of them is read anyway; a query block has as many new ones as it draws, once there are so many."""
    n = 24
    m = Random(3, seed=5, symmetric=symmetric, first=1, back=2).matrix(n)
    held = (Block(1, 1, 1) | Tokens(1)).matrix(n)
    assert not (m & held)[1:].any()
    assert (m.sum(1)[5:] >= 3).all() and (symmetric or m.sum(1)[5:].eq(3).all())


def test_random_symmetric_reads_more_the_earlier_a_query_stands():
    """As its docstring says: about keys * (1 + ln(n / i)); one that draws from rows reads as many everywhere."""
    counts = torch.stack([Random(3, seed=seed, symmetric=True).matrix(1024).sum(1) for seed in range(8)]).double()
    for first, last in ((4, 8), (80, 120), (980, 1020)):
        want = 3 * (1 + (1024 / torch.arange(first, last)).log())
        assert (counts[:, first:last].mean() - want.mean()).abs() < 1
    assert (RowRandom(torch.tensor([[1024]]), 3).matrix(1024).sum(1) == 3).all()


@pytest.mark.parametrize(
    ("keys", "block", "first", "window"), [(1, 1, 0, -1), (3, 1, 0, 0), (2, 3, 1, 1), (4, 2, 2, 0)]
)
def test_row_random_draws_as_many_for_every_query_of_every_row(keys, block, first, window):
    ends = torch.tensor([[1], [5], [20]])
    pattern = RowRandom(ends, keys, block, 7, first, window)
    for b, end in enumerate(ends[:, 0].tolist()):
        for h in range(3):
            m = pattern.matrix(end * block, b=b, h=h)
            for i in range(end * block):
                drawn = {j // block for j in range(end * block) if m[i, j]}
                candidates = {c for c in range(first, end) if abs(c - i // block) > window}
                assert drawn <= candidates and len(drawn) == min(keys, len(candidates))
                assert m[i].sum() == block * len(drawn)


def test_row_random_is_uniform_and_differs_by_head_seed_and_length():
    m = torch.stack([RowRandom(torch.tensor([[20]]), 3, seed=seed).matrix(20)[[0, 7, 19]] for seed in range(400)])
    assert (m.double().mean(0) - 3 / 20).abs().max() < 5 * (0.15 * 0.85 / 400) ** 0.5
    pattern = RowRandom(torch.tensor([[40], [80]]), 2)
    assert not torch.equal(pattern.matrix(40, h=0), pattern.matrix(40, h=1))
    assert pattern.matrix(80, b=1)[:20, 40:].any()  # early ones read late ones as often


@pytest.mark.parametrize(("first", "window", "among"), [(1, 1, 9), (0, 0, 12), (2, 2, 7)])
@pytest.mark.parametrize("block", [1, 2])
def test_the_published_draw_is_of_a_fixed_run_without_repetition(first, window, among, block):
    pattern = PublishedRandom(3, block, 7, among, first, window)
    for h in range(2):
        m = pattern.matrix(20 * block, h=h)
        for i in range(20 * block):
            drawn = {j // block for j in range(20 * block) if m[i, j]}
            candidates = {c for c in range(first, among) if abs(c - i // block) > window}
            assert drawn <= candidates and len(drawn) == min(3, len(candidates))
            assert m[i].sum() == block * len(drawn)


def test_the_published_draw_is_uniform_and_the_same_at_every_length():
    m = torch.stack([PublishedRandom(2, seed=seed, among=8).matrix(10)[4] for seed in range(400)]).double()
    expected = torch.tensor([0, 1, 1, 0, 0, 0, 1, 1, 0, 0]) / 2
    assert (m.mean(0) - expected).abs().max() < 5 * (0.25 / 400) ** 0.5 and (m.mean(0)[expected == 0] == 0).all()
    long = PublishedRandom(2, 2, 1)
    assert torch.equal(long.matrix(40)[:15, :15], long.matrix(15))
    assert not torch.equal(long.matrix(40), long.matrix(40, h=1))


def steps(pattern, length):
    """How many layers of one pattern until every position knows of every other that it may ever know of."""
    reads = pattern.matrix(length).double()
    known, count = torch.eye(length, dtype=torch.double), 0
    while not torch.equal(wider := (reads @ known + known).clamp_max(1), known):
        known, count = wider, count + 1
    return count, known.bool()


def test_random_blocks_shorten_paths():
    """Claim of Zaheer et al., section 2: paths of logarithmic length, where a window alone takes as many as it has."""
    n, window = 64, Block(1, 1, 1)
    assert steps(window, n)[0] == n - 1
    count, known = steps(window | Random(3, symmetric=True, first=1, back=2), n)
    assert known.all() and count <= 6  # 64 is 2 to the 6th
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


def test_blocks_by_comparisons_alone_are_the_same_set():
    """What is compiled may make no table."""
    at = torch.arange(20)
    for pattern in (Blocks(((0,), (0, 1), (2, 0), ()), size=3), Blocks(((), ()), 2)):
        row, column = at[:, None] // pattern.size, at[None] // pattern.size
        assert torch.equal(pattern._compared(row, column).expand(20, 20), pattern.matrix(20))


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
        one = pattern.of_head(h)
        assert all(torch.equal(one.matrix(20, h=other), pattern.matrix(20, h=h)) for other in range(4))
    assert (Causal() & Heads(Band(2), Full())).of_head(2) == Causal() & Band(2)
    assert Random(2).of_head(3) == Random(2, head=3) == Random(2, head=3).of_head(1)


def test_blocks_that_a_head_draws_are_found_many_at_a_time():
    """What an executor asks of 4,096 blocks of pairs: `cover` says of each what its pairs say."""
    at = torch.arange(0, 256, 4)
    for one in (Random(2, 4), Random(2, 4, symmetric=True, first=1, back=1), PublishedRandom(3, 4), Random(1, 2)):
        m = one.matrix(256, h=5).unflatten(1, (64, 4)).unflatten(0, (64, 4)).transpose(1, 2).flatten(2)
        some, every = one.of_head(5).cover(at[:, None], at[:, None] + 3, at, at + 3)
        assert torch.equal(some, m.any(2)) and torch.equal(every, m.all(2))


def test_on_heads_is_a_turn_of_the_heads():
    pattern = Heads(Causal(), Band(1), Full())
    spelled = OnHeads(0, 3) & Causal() | OnHeads(1, 3) & Band(1) | OnHeads(2, 3) & Full()
    assert all(torch.equal(pattern.matrix(9, h=h), spelled.matrix(9, h=h)) for h in range(7))


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
def test_tensors_of_the_batch_can_be_handed_over_one_by_one(pattern):
    """with_tensors puts others in the place of each, at every depth, and leaves the pattern as it was."""
    tensors = pattern.tensors()
    before = [pattern.matrix(L, h=h) for h in range(3)]
    same = pattern.with_tensors({name: tensor.clone() for name, tensor in tensors.items()})
    other = pattern.with_tensors({name: tensor.flip(1) for name, tensor in tensors.items()})
    assert tensors and same.tensors().keys() == other.tensors().keys() == tensors.keys()
    for h in range(3):
        assert torch.equal(same.matrix(L, h=h), before[h]) and torch.equal(pattern.matrix(L, h=h), before[h])
    assert all(torch.equal(other.tensors()[name], tensor.flip(1)) for name, tensor in tensors.items())
    assert any(not torch.equal(other.matrix(L, h=h), before[h]) for h in range(3))
    for name in tensors:  # each of them alone reaches the set
        one = pattern.with_tensors({name: tensors[name].flip(1)})
        assert [n for n, t in one.tensors().items() if t is not tensors[n]] == [name]


def test_a_pattern_without_tensors_is_itself_and_unknown_names_are_refused():
    assert (Causal() & Band(3)).tensors() == {} and (Causal() & Band(3)).with_tensors({}) == Causal() & Band(3)
    with pytest.raises(KeyError, match="no tensor 'mask'; it has .*'left.ids'"):
        PAIR.with_tensors({"mask": torch.tensor([MARKS])})


def test_the_matrix_of_a_row_is_that_rows():
    ids = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    for b in range(2):
        assert torch.equal(Document(ids).matrix(4, b=b), ids[b][:, None] == ids[b])


def test_python_s_own_and_or_and_not_are_refused() -> None:
    """`Causal() and Band(3)` would be Band(3) alone, which reads ahead."""
    for join in (lambda: Causal() and Band(3), lambda: Causal() or Band(3), lambda: not Causal()):
        with pytest.raises(TypeError, match="join patterns by &, | and ~"):
            join()
