"""Hidden memory in training, a cache in decoding, dense attention: one meaning; and where gradients end."""

import pytest
import torch
from torch import Tensor

from kinformer.attention import Attention
from kinformer.biases.adaptive_span import AdaptiveSpan
from kinformer.biases.transformer_xl import TransformerXL
from kinformer.blocks.post_norm import PostNorm
from kinformer.core.layer import Context, Layer
from kinformer.core.pattern import Pattern
from kinformer.depth.stack import Stack
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.memories.hidden import Hidden, HiddenStates
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.segment import Segment
from kinformer.patterns.tokens import Tokens

pytestmark = pytest.mark.usefixtures("float64")
D, LENGTH = 12, 17
SIZES = [(5, 5), (4, 7), (3, 0), (1, 2), (6, 50), (40, 3)]
CUTS = [(), (1, 2, 3, 11), (5, 10, 15), (7, 8, 16), tuple(range(1, LENGTH))]


def attention(length: int, memory: int, pattern: Pattern | None = None) -> Attention:
    pattern = Causal() & Segment(length, memory) if pattern is None else pattern
    return Attention(D, 2, Softmax(pattern, TransformerXL(2, D // 2)), memory=Hidden(length, memory))


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


@pytest.mark.parametrize(("length", "memory"), SIZES)
@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: f"{len(cuts)}cuts")
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
    assert layer.train().start(2, 20).x.shape == (2, 8, D)
    assert layer.train().start(2, 6).x.shape == (2, 6, D)
    assert not isinstance(layer.eval().start(2, 20), HiddenStates)


def test_what_a_layer_hands_on_has_no_graph() -> None:
    layer, (x, pos) = attention(5, 3).train(), rows()
    for length in (3, LENGTH):
        state = layer(x[:, :length].requires_grad_(), layer.start(5, LENGTH), Context(pos[:, :length])).state
        assert not state.x.requires_grad
        assert bool(state.x.any())


def test_no_gradient_enters_the_memory_and_the_key_projection_has_one_from_it() -> None:
    layer, (x, _) = attention(4, 4, Causal() & Segment(4, 4) & ~Segment(4, 0)).train(), rows()
    pos = torch.arange(8).expand(5, -1)
    before = x[:, :4].clone().requires_grad_()
    state = layer(before, layer.start(5, 8), Context(pos[:, :4])).state
    remembered = state._replace(x=state.x.clone().requires_grad_())
    layer.zero_grad()
    layer(x[:, 4:8], remembered, Context(pos[:, 4:])).y.square().sum().backward()
    assert before.grad is None and (remembered.x.grad is None or not remembered.x.grad.any())
    for part in (layer.projection.k, layer.projection.v):  # the pattern allows the memory alone
        assert part.weight.grad.abs().max() > 1e-6


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

    def gradients(x: Tensor, pos: Tensor, which: int) -> list[Tensor]:
        layer.zero_grad()
        y = layer(x, layer.start(len(x), LENGTH), Context(pos)).y
        (y[which][pos[which] >= 0] ** 2).sum().backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    for row in range(4):
        real = pos[row] >= 0
        alone = gradients(x[row : row + 1, real], pos[row : row + 1, real], 0)
        for ours, theirs in zip(gradients(x, pos, row), alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_cuts_are_where_a_row_s_segment_ends() -> None:
    pos = torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [-1, -1, 0, 1, 2, 3, 4, -1], [-1] * 8])
    assert Hidden(4, 2).cuts(pos) == [2, 6]
    assert Hidden(5, 2).cuts(pos[:1]) == [3]
    assert Hidden(20, 2).cuts(pos) == []
    assert Hidden(1, 2).cuts(pos[1:2]) == [3, 4, 5, 6]
    assert Hidden(4, 2).cuts(pos[:, :0]) == []
    assert Hidden(4, 2).cuts(torch.tensor([[2, 3, -1, -1, 4, -1, 5]])) == [4]  # padding between tokens ends no segment


def test_it_keeps_what_a_later_query_may_read_and_no_more() -> None:
    layer, (x, _) = attention(4, 6).train(), rows()
    state = layer(x, layer.start(5, LENGTH), Context(torch.arange(LENGTH).expand(5, -1))).state
    kept = state.pos[0][state.pos[0] >= 0]
    assert kept.tolist() == list(range(LENGTH // 4 * 4 - 6, LENGTH))
    assert torch.equal(state.x[0, state.pos[0] >= 0], x[0, kept])
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
    layer = Attention(16, 2, Softmax(pattern, AdaptiveSpan(2, 8, start=3.0)), memory=Hidden(4, 4)).train()
    for length in (4, 12):
        out = layer(torch.randn(1, length, 16), layer.start(1, length), Context(torch.arange(length)[None], run=True))
        assert out.aux["span"].item() == pytest.approx(3.0)
