"""Hidden memory in training, a cache in decoding, dense attention: one meaning; and where gradients end."""

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context, Layer, Out
from kinformer.core.memo import Memo
from kinformer.core.memory import slots_needed
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.core.state import share_positions
from kinformer.nn.attention import Attention
from kinformer.nn.biases.adaptive_span import AdaptiveSpan
from kinformer.nn.biases.transformer_xl import TransformerXL
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.hidden import Hidden, HiddenStates
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
D, LENGTH = 12, 17
SIZES = [(5, 5), (4, 7), (3, 0), (1, 2), (6, 50), (40, 3)]
CUTS = [(), (1, 2, 3, 11), (5, 10, 15), (7, 8, 16), tuple(range(1, LENGTH))]
# each of the sizes, and of the cuts, once or twice; in the long run each with each
CASES = [
    pytest.param(*sizes, cuts, marks=[] if m == (n + 1) % len(CUTS) else pytest.mark.prove)
    for n, sizes in enumerate(SIZES)
    for m, cuts in enumerate(CUTS)
]


def attention(length: int, memory: int, pattern: Pattern | None = None) -> Attention:
    pattern = Causal() & Segment(length, memory) if pattern is None else pattern
    return Attention(QKV(D, 2), Softmax(pattern, TransformerXL(2, D // 2)), memory=Hidden(length, memory))


def stack(length: int, memory: int) -> Stack:
    return Stack(PostNorm(attention(length, memory), MLP(D)) for _ in range(3))


def rows() -> tuple[Tensor, Tensor]:
    """Rows that stand at different places: one whole, one padded left, one right, one at both ends, one all padding."""
    pos = torch.full((5, LENGTH), -1)
    for row, (lo, hi) in enumerate([(0, LENGTH), (4, LENGTH), (0, LENGTH - 6), (3, LENGTH - 5), (0, 0)]):
        pos[row, lo:hi] = torch.arange(hi - lo)
    return torch.randn(5, LENGTH, D), pos


def in_pieces(layer: Layer, x: Tensor, pos: Tensor, cuts: tuple[int, ...]) -> Tensor:
    state, pieces = layer.start(len(x), LENGTH), []
    for at in torch.arange(x.shape[1]).tensor_split(list(cuts)):
        out = layer(x[:, at], state, Context(pos[:, at], run=True))
        state = out.state
        pieces.append(out.y)
    return torch.cat(pieces, 1)


@pytest.mark.parametrize(("length", "memory", "cuts"), CASES)
def test_memory_and_cache_are_dense_attention_through_depth(length: int, memory: int, cuts: tuple[int, ...]) -> None:
    body = stack(length, memory)
    x, pos = rows()
    dense = body(x, None, Context(pos, run=True)).y[pos >= 0]
    trained = in_pieces(body.train(), x, pos, cuts)[pos >= 0]
    decoded = in_pieces(body.eval(), x, pos, cuts)[pos >= 0]
    torch.testing.assert_close(trained, dense, rtol=0, atol=1e-12)
    torch.testing.assert_close(decoded, dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: f"{len(cuts)}cuts")
def test_a_band_within_the_memory_reads_equally_many_keys_everywhere(cuts: tuple[int, ...]) -> None:
    layer = attention(4, 6, Causal() & Band(6))
    x, pos = rows()
    dense = layer(x, None, Context(pos, run=True)).y[pos >= 0]
    for training in (True, False):
        ours = in_pieces(layer.train(training), x, pos, cuts)[pos >= 0]
        torch.testing.assert_close(ours, dense, rtol=0, atol=1e-12)


def test_training_starts_with_hidden_states_and_evaluation_with_keys() -> None:
    layer = attention(5, 3)
    assert isinstance(layer.train().start(2, 20), HiddenStates)
    assert layer.train().start(2, 20).x.shape == (2, 5 - 1 + 3, D)
    assert layer.train().start(2, 6).x.shape == (2, 6, D)
    assert not isinstance(layer.eval().start(2, 20), HiddenStates)


def gradients(layer: Layer, x: Tensor, pos: Tensor, cuts: tuple[int, ...], state: bool = True) -> list[Tensor]:
    """Of a loss over all chunks together, the state carried with its graph: for x and every parameter."""
    x = x.clone().requires_grad_()
    state_now, total = layer.start(len(x), LENGTH) if state else None, torch.zeros(())
    for at in torch.arange(x.shape[1]).tensor_split(list(cuts)):
        out: Out = layer(x[:, at], state_now, Context(pos[:, at], run=True))
        state_now, total = out.state, total + out.y[pos[:, at] >= 0].sin().sum()
    return list(torch.autograd.grad(total, [x, *layer.parameters()]))


@pytest.mark.parametrize("cuts", CUTS[1:], ids=lambda cuts: f"{len(cuts)}cuts")
@pytest.mark.parametrize("depth", [1, 3])
def test_a_cut_changes_no_gradient(cuts: tuple[int, ...], depth: int) -> None:
    body = Stack([PostNorm(attention(5, 4), MLP(D)) for _ in range(depth)]).train()
    x, pos = rows()
    whole = gradients(body, x, pos, ())
    for ours, theirs in zip(gradients(body, x, pos, cuts), whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_training_without_a_state_begins_a_fresh_memory() -> None:
    body, (x, pos) = stack(5, 4).train(), rows()
    for ours, theirs in zip(gradients(body, x, pos, (), state=False), gradients(body, x, pos, ()), strict=True):
        assert torch.equal(ours, theirs)
    layer, x = attention(5, 4).train(), x.requires_grad_()
    (grad,) = torch.autograd.grad(layer(x, None, Context(pos)).y[0, 7].sum(), x)
    assert (grad[0].abs().amax(-1) > 0).tolist() == [5 <= t <= 7 for t in range(LENGTH)]


def test_all_layers_look_as_often_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [], Memo.look
    monkeypatch.setattr(Memo, "look", lambda self, *numbers: looks.append(1) or look(self, *numbers))
    x, pos = rows()
    for begins in (False, True):
        results = []
        for depth in (1, 3):
            body = Stack([PostNorm(attention(5, 4), MLP(D)) for _ in range(depth)]).train()
            state = share_positions(body.start(5, LENGTH)) if begins else None
            looks.clear()
            body(x, state, Context(pos))
            results.append(len(looks))
        assert results[0] == results[1] > 0


def test_what_no_token_of_a_chunk_reads_is_not_projected() -> None:
    """Slots for any cut of a segment, of which a whole segment reads those of the memory alone."""
    length, memory = 6, 4
    layer = attention(length, memory).train()
    x = torch.randn(2, 3 * length, D)
    projected, state = [], layer.start(2, 3 * length)
    assert state.x.shape[1] == length - 1 + memory
    keys = layer.projection.keys
    layer.projection.keys = lambda source, pos: projected.append(source.shape[1]) or keys(source, pos)
    for lo, hi in ((0, 6), (6, 12), (12, 14), (14, 18)):
        state = layer(x[:, lo:hi], state, Context(torch.arange(lo, hi).expand(2, -1))).state
        assert state.x.shape[1] == length - 1 + memory
    assert projected == [6, 4 + 6, 4 + 2, 4 + 2 + 4]


def test_a_row_that_may_not_be_looked_at_is_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under compile no cut can be found: values and gradients are those of the cut row, through depth."""
    body, (x, pos) = stack(5, 4).train(), rows()
    before = x.flip(1), torch.where(pos >= 0, pos, -1)
    state = body(*before[:1], body.start(5, LENGTH), Context(before[1])).state
    pos = torch.where(pos >= 0, pos + LENGTH, -1)
    for old in (None, state):
        results = []
        for compiling in (False, True):
            monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
            out = body(x, old, Context(pos))
            y = out.y[pos >= 0]
            sums = [] if old is None else [part[0].x.sum(1) for part in out.state]
            grads = torch.autograd.grad(y.sin().sum(), list(body.parameters()), retain_graph=True)
            results.append([y, *sums, *grads])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_no_gradient_enters_the_memory_and_the_key_projection_has_one_from_it() -> None:
    layer, (x, _) = attention(4, 4, Causal() & Segment(4, 4) & ~Segment(4, 0)).train(), rows()
    pos = torch.arange(8).expand(5, -1)
    before = x[:, :4].clone().requires_grad_()
    state = layer(before, layer.start(5, 8), Context(pos[:, :4])).state
    assert state.x.requires_grad
    layer(x[:, 4:8], state, Context(pos[:, 4:])).y.square().sum().backward()
    assert not before.grad.any()
    _, *key_gradients = layer.projection.qkv.weight.grad.split(layer.projection.widths)
    for part in key_gradients:  # of keys and values: the pattern allows the memory alone
        assert part.abs().max() > 1e-6


def test_gradients_flow_within_a_segment_alone_whoever_is_in_the_batch() -> None:
    length = 4
    layer, (x, pos) = attention(length, 6).train(), rows()
    x.requires_grad_()
    y = layer(x, layer.start(5, LENGTH), Context(pos)).y
    for row in range(4):
        for t in (pos[row] >= 0).nonzero().flatten().tolist():
            (grad,) = torch.autograd.grad(y[row, t].sum(), x, retain_graph=True)
            moves = grad.abs().amax(-1) > 0
            own = (pos[row] // length == pos[row, t] // length) & (pos[row] >= 0) & (pos[row] <= pos[row, t])
            assert torch.equal(moves[row], own), f"row {row}, column {t}"
            assert not moves[torch.arange(5) != row].any()


def test_a_row_trains_alike_alone_and_among_rows_at_other_places() -> None:
    layer, (x, pos) = attention(4, 6).train(), rows()

    def of_row(x: Tensor, pos: Tensor, row: int) -> list[Tensor]:
        layer.zero_grad()
        y = layer(x, layer.start(len(x), LENGTH), Context(pos)).y
        (y[row][pos[row] >= 0] ** 2).sum().backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    for row in range(4):
        real = pos[row] >= 0
        alone = of_row(x[row : row + 1, real], pos[row : row + 1, real], 0)
        for ours, theirs in zip(of_row(x, pos, row), alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_cuts_are_where_a_row_s_segment_ends() -> None:
    pos = torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [-1, -1, 0, 1, 2, 3, 4, -1], [-1] * 8])
    assert Hidden(4, 2).segment_cuts(Context(pos)) == [2, 6]
    assert Hidden(5, 2).segment_cuts(Context(pos[:1])) == [3]
    assert Hidden(20, 2).segment_cuts(Context(pos)) == []
    assert Hidden(1, 2).segment_cuts(Context(pos[1:2])) == [3, 4, 5, 6]
    assert Hidden(4, 2).segment_cuts(Context(pos[:, :0])) == []
    between = torch.tensor([[2, 3, -1, -1, 4, -1, 5]])  # padding between tokens ends no segment
    assert Hidden(4, 2).segment_cuts(Context(between)) == [4]


def test_it_keeps_what_a_later_query_may_read_and_no_more() -> None:
    layer, (x, _) = attention(4, 6).train(), rows()
    state = layer(x, layer.start(5, LENGTH), Context(torch.arange(LENGTH).expand(5, -1))).state
    positions = state.pos[0][state.pos[0] >= 0]
    assert positions.tolist() == list(range(LENGTH // 4 * 4 - 6, LENGTH))
    assert torch.equal(state.x[0, state.pos[0] >= 0], x[0, positions])
    assert state.now.tolist() == [LENGTH] * 5


def test_a_batch_s_own_additions_are_remembered() -> None:
    layer, (x, pos) = attention(4, 2), rows()
    ctx = Context(pos, also=Causal() & Tokens(2))
    dense = layer(x, None, ctx).y[pos >= 0]
    out = layer.train()(x, layer.start(5, LENGTH), ctx)
    torch.testing.assert_close(out.y[pos >= 0], dense, rtol=0, atol=1e-12)
    assert {0, 1} <= set(out.state.pos[0].tolist())


def test_a_penalty_on_parameters_counts_once_however_many_pieces():
    torch.manual_seed(0)
    pattern = Causal() & Segment(4, 4)
    layer = Attention(QKV(16, 2), Softmax(pattern, AdaptiveSpan(2, 8, start=3.0)), memory=Hidden(4, 4)).train()
    for length in (4, 12):
        out = layer(torch.randn(1, length, 16), layer.start(1, length), Context(torch.arange(length)[None], run=True))
        assert out.aux["span"].item() == pytest.approx(3.0)


def test_a_row_longer_than_was_told_forgets_nothing() -> None:
    layer, (x, pos) = attention(5, 6).train(), rows()
    dense = layer.eval()(x, None, Context(pos)).y[pos >= 0]
    state, pieces = layer.train().start(5, 2), []
    for at in torch.arange(LENGTH).split(1):
        out = layer(x[:, at], state, Context(pos[:, at]))
        state = out.state
        pieces.append(out.y)
    torch.testing.assert_close(torch.cat(pieces, 1)[pos >= 0], dense, rtol=0, atol=1e-12)
    assert state.x.shape[1] == 10  # what the next token reads beside itself


def test_a_memory_is_kept_in_the_precision_it_was_started_in() -> None:
    layer, (x, pos) = attention(5, 6).train(), rows()
    state = layer(x, layer.start(5, LENGTH, dtype=torch.bfloat16), Context(pos)).state
    assert state.x.dtype == torch.bfloat16
    assert layer(x, state, Context(torch.where(pos >= 0, pos + LENGTH, -1))).y.dtype == x.dtype


@pytest.mark.parametrize(
    "pattern",
    [
        Causal(),
        Causal() & Segment(32, 33),
        Causal() & (Band(16) | Tokens(2)),
        Causal() & (Band(16) | Strided(100)),
        Heads(Causal() & Band(8), Causal()),
    ],
    ids=str,
)
def test_a_pattern_that_reads_more_than_is_kept_is_refused(pattern: Pattern) -> None:
    with pytest.raises(
        ValueError, match=r"reads keys that the memory does not keep; with this Hidden, use Causal\(\) & Segment"
    ):
        Attention(QKV(D, 2), Softmax(pattern), memory=Hidden(32, 32))


@pytest.mark.parametrize(
    "pattern", [Causal() & Band(32), Causal() & Band(3), Causal() & Segment(32, 32) & ~Segment(32, 0)], ids=str
)
def test_a_pattern_within_the_memory_is_fine(pattern: Pattern) -> None:
    layer, x = Attention(QKV(D, 2), Softmax(pattern), memory=Hidden(32, 32)), torch.randn(1, 70, D)
    torch.testing.assert_close(layer.train()(x).y, layer.eval()(x).y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_a_memory_that_was_made_shorter_than_the_pattern_wants_is_refused_when_a_row_begins(training: bool) -> None:
    """Training used to read less than decoding from then on."""
    layer, x = attention(4, 6).train(training), torch.randn(1, 3, D)
    layer.memory.memory = 2
    with pytest.raises(
        ValueError, match=r"reads keys that the memory does not keep; with this Hidden, use Causal\(\) & Segment"
    ):
        layer.start(1, 8)
    if training:
        with pytest.raises(ValueError, match="reads keys that the memory does not keep"):
            layer(x)
    layer.mechanism.pattern = Causal() & Segment(4, 2)
    layer(x, layer.start(1, 8), Context(torch.arange(3)[None], run=True))


@pytest.mark.parametrize("reads", [Segment(4, 3), Segment(5, 3), Segment(3, 0)], ids=repr)
def test_columns_are_enough_wherever_in_a_row_they_begin(reads: Segment) -> None:
    """Five columns from the middle of a row can all be wanted, of a row of five tokens never."""
    for now in range(1, 30):
        keys = torch.arange(now)[None]
        live = reads.live(keys, torch.tensor([[now]]))
        assert all(live[:, -columns:].sum() <= slots_needed(reads, columns) for columns in range(1, now + 1))
    assert slots_needed(Segment(4, 3), 5) == 5
