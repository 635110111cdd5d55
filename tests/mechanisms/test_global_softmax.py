"""GlobalSoftmax: Longformer's attention by loops, decoding with global tokens per example, and Hugging Face's layer."""

import math
from types import ModuleType

import pytest
import torch
from torch import Tensor

from kinformer.attention import Attention
from kinformer.core.layer import Context, State
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.core.projection import by_head
from kinformer.core.state import fork, leaves, reset, select
from kinformer.laws import any_length, batch_mates, chunk, dtype, empty_rows, mutation, padding, peek, rows
from kinformer.laws.subject import Subject
from kinformer.mechanisms.global_softmax import GlobalSoftmax
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.marked import Marked, MarkedKeys, MarkedRows
from kinformer.patterns.rows import Rows
from kinformer.patterns.tokens import Tokens

pytestmark = pytest.mark.usefixtures("float64")

LAWS = (any_length, batch_mates, chunk, dtype, empty_rows, mutation, padding, peek, rows)
LENGTH = 12
MASK = torch.zeros(3, LENGTH, dtype=torch.bool)
MASK[0, [0, 5]] = MASK[1, [2, 3, 9]] = True  # and none in row 2


def rows_padded_differently() -> Tensor:
    """Three rows: no padding, padding after, padding before."""
    pos = torch.arange(LENGTH).repeat(3, 1)
    pos[1, LENGTH - 2 :] = -1
    pos[2] -= 3
    pos[2, :3] = -1
    return pos


def longformer(x: Tensor, pos: Tensor, layer: Attention, window: int, is_global: Tensor, causal: bool) -> Tensor:
    """The paper's attention: a global token reads all with Q_g, K_g, V_g, another its window and the global ones."""
    heads, size = layer.heads, layer.projection.k_dim
    local = layer.projection(x, pos, x, pos)
    wide = by_head(layer.side(x), heads).split(size, -1)
    y = torch.zeros_like(local[0])
    for b, h, i in ((b, h, i) for b in range(len(x)) for h in range(heads) for i in range(x.shape[1])):
        own = int(pos[b, i])
        if own < 0:
            continue
        q, k, v = wide if is_global[b, own] else local
        scores, values = [], []
        for j, other in enumerate(pos[b].tolist()):
            near = abs(own - other) <= window or is_global[b, other] or is_global[b, own]
            if other >= 0 and near and (other <= own or not causal):
                scores.append(q[b, h, i].dot(k[b, h, j]) / math.sqrt(size))
                values.append(v[b, h, j])
        y[b, h, i] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return layer.aggregation(y)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_global_tokens_of_each_example(causal: bool) -> None:
    layer, x, pos = Attention(16, 2, GlobalSoftmax(Band(2))), torch.randn(3, LENGTH, 16), rows_padded_differently()
    ctx = Context(pos, only=Causal() if causal else None, also=Marked(MASK))
    close(layer(x, None, ctx).y[pos >= 0], longformer(x, pos, layer, 2, MASK, causal)[pos >= 0])


@pytest.mark.parametrize("causal", [False, True])
def test_global_tokens_of_all_examples(causal: bool) -> None:
    pattern, rows = Band(2) | Tokens((1, 6)), Rows((1, 6))
    mechanism = GlobalSoftmax(Causal() & pattern, Causal() & rows) if causal else GlobalSoftmax(pattern, rows)
    layer, x, pos = Attention(16, 2, mechanism), torch.randn(3, LENGTH, 16), rows_padded_differently()
    mask = torch.zeros(3, LENGTH, dtype=torch.bool)
    mask[:, [1, 6]] = True
    close(layer(x, None, Context(pos)).y[pos >= 0], longformer(x, pos, layer, 2, mask, causal)[pos >= 0])


def test_both_kinds_of_global_tokens_at_once() -> None:
    layer, x = Attention(16, 2, GlobalSoftmax(Band(1) | Tokens(1), Rows(1))), torch.randn(3, LENGTH, 16)
    pos, mask = rows_padded_differently(), MASK.clone()
    mask[:, 0] = True
    also = MarkedKeys(MASK) | MarkedRows(MASK)
    close(layer(x, None, Context(pos, also=also)).y[pos >= 0], longformer(x, pos, layer, 1, mask, False)[pos >= 0])


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_started_as_copies_of_the_local_projections_it_is_softmax(key_heads: int) -> None:
    pattern = Band(2) | Tokens(2)
    layer = Attention(16, 4, GlobalSoftmax(pattern, Rows(2), scale=0.3), key_heads=key_heads)
    plain = Attention(16, 4, Softmax(pattern | Rows(2), scale=0.3), key_heads=key_heads)
    p = layer.projection
    for name in ("weight", "bias"):
        parts = [getattr(linear, name).unflatten(0, (-1, 4)) for linear in (p.q, p.k, p.v)]
        parts = [part.repeat_interleave(4 // len(part), 0) for part in parts]
        getattr(layer.side, name).data.copy_(torch.cat(parts, 1).flatten(0, 1))
    plain.load_state_dict({key: value for key, value in layer.state_dict().items() if not key.startswith("side.")})
    x, pos = torch.randn(3, LENGTH, 16), rows_padded_differently()
    close(layer(x, None, Context(pos)).y, plain(x, None, Context(pos)).y)


def test_weights_are_dropped_in_training_alone() -> None:
    layer, x = Attention(16, 2, GlobalSoftmax(Band(2), Rows(3), dropout=0.5)), torch.randn(2, 9, 16)
    ctx = Context(torch.arange(9).repeat(2, 1))
    y, again = layer(x, None, ctx).y, layer(x, None, ctx).y
    assert not torch.allclose(y[:, :3], again[:, :3]) and not torch.allclose(y[:, 3:], again[:, 3:])
    layer.eval()
    assert torch.equal(layer(x, None, ctx).y, layer(x, None, ctx).y)


def in_chunks(layer: Attention, x: Tensor, pos: Tensor, cuts: list[int], state: State, **given: Pattern) -> tuple:
    done = []
    for piece, piece_pos in zip(x.split(cuts, 1), pos.split(cuts, 1), strict=True):
        out = layer(piece, state, Context(piece_pos, **given))
        state = out.state
        done.append(out.y)
    return torch.cat(done, 1), state


CUTS = [[1] * LENGTH, [3, 1, 8], [7, 4, 1], [LENGTH]]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("marks", [Marked, MarkedKeys, MarkedRows])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_it_decodes_with_global_tokens_of_each_example(marks: type[Pattern], cuts: list[int], key_heads: int) -> None:
    layer = Attention(16, 2, GlobalSoftmax(Causal() & Band(2)), key_heads=key_heads)
    x, pos, given = torch.randn(3, LENGTH, 16), rows_padded_differently(), {"only": Causal(), "also": marks(MASK)}
    whole = layer(x, None, Context(pos, **given)).y
    y, _ = in_chunks(layer, x, pos, cuts, layer.start(3, LENGTH), **given)
    close(y[pos >= 0], whole[pos >= 0])


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_it_decodes_with_global_tokens_of_all_examples(cuts: list[int]) -> None:
    layer = Attention(16, 2, GlobalSoftmax(Causal() & (Band(2) | Tokens((1, 6))), Causal() & Rows((1, 6))))
    x, pos = torch.randn(3, LENGTH, 16), rows_padded_differently()
    y, state = in_chunks(layer, x, pos, cuts, layer.start(3, LENGTH))
    close(y[pos >= 0], layer(x, None, Context(pos)).y[pos >= 0])
    kept = state.near.pos[0]
    assert sorted(kept[kept >= 0].tolist()) == [1, 6, 10, 11]
    assert (state.wide.pos == -1).all(), "no global query can come any more, so no global key is kept"


def test_all_global_keys_are_kept_while_a_global_query_may_come() -> None:
    layer = Attention(16, 2, GlobalSoftmax(Causal() & Band(2)))
    x, pos, given = torch.randn(3, LENGTH, 16), rows_padded_differently(), {"only": Causal(), "also": MarkedRows(MASK)}
    _, state = in_chunks(layer, x, pos, [5, 7], layer.start(3, LENGTH), **given)
    assert [sorted(row[row >= 0].tolist()) for row in state.wide.pos] == [list(range(n)) for n in (12, 10, 9)]
    assert {name for name, _ in leaves(state)} == {"k", "v", "pos", "now"}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.rpartition(".")[2])
@pytest.mark.parametrize("causal", [False, True])
def test_it_keeps_the_laws_with_global_tokens_of_each_example(law: ModuleType, causal: bool) -> None:
    marked = torch.zeros(8, 64, dtype=torch.bool)
    marked[:, ::5] = marked[0, 2] = True
    marked[1] = False
    pattern, only = (Causal() & Band(3), Causal()) if causal else (Band(3), None)
    law.check(Subject("global", lambda: Attention(16, 2, GlobalSoftmax(pattern)), only=only, also=Marked(marked)))


def test_rows_of_its_state_are_reset_selected_and_forked() -> None:
    layer, given = Attention(16, 2, GlobalSoftmax(Causal() & Band(2))), {"only": Causal(), "also": Marked(MASK)}
    x, pos = torch.randn(3, LENGTH, 16), torch.arange(LENGTH).repeat(3, 1)
    _, state = in_chunks(layer, x[:, :6], pos[:, :6], [6], layer.start(3, LENGTH), **given)
    rest = Context(pos[:, 6:], **given)
    expected = layer(x[:, 6:], fork(state), rest).y
    wanted = torch.tensor([1, 1, 0])
    chosen = Context(pos[:, 6:], only=Causal(), also=Marked(MASK[wanted]))
    close(layer(x[wanted, 6:], select(state, wanted), chosen).y, expected[wanted])
    anew = Context(torch.stack([pos[0, 6:], pos[0, :6], pos[0, 6:]]), **given)
    y = layer(x[:, 6:], reset(state, torch.tensor([False, True, False])), anew).y
    close(y[1], layer(x[:, 6:], layer.start(3, LENGTH), anew).y[1])
    close(y[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("mechanism", [GlobalSoftmax(Band(2)), GlobalSoftmax(Causal() & Band(2), Rows(2))])
def test_what_reads_ahead_has_no_state(mechanism: GlobalSoftmax) -> None:
    with pytest.raises(NoState, match="use Causal\\(\\) & it"):
        mechanism.start(1, 8, 2, 8, 8)


def test_additions_without_a_limit_read_ahead_and_are_refused_with_a_state() -> None:
    layer = Attention(16, 2, GlobalSoftmax(Causal() & Band(2)))
    with pytest.raises(NoState):
        layer(torch.randn(3, 2, 16), layer.start(3, 8), Context(torch.arange(2).repeat(3, 1), also=Marked(MASK)))


@pytest.mark.parametrize("also", [Marked(MASK) & Causal(), ~MarkedRows(MASK), Tokens(1) | (Rows(1) & Causal())])
def test_additions_that_hide_who_is_global_are_refused(also: Pattern) -> None:
    layer = Attention(16, 2, GlobalSoftmax(Band(2)))
    with pytest.raises(ValueError, match="cannot tell which queries"):
        layer(torch.randn(3, 4, 16), None, Context(torch.arange(4).repeat(3, 1), also=also))


def test_keys_of_another_sequence_are_refused() -> None:
    layer, pos = Attention(16, 2, GlobalSoftmax(Band(2)), cross=True), torch.arange(4)[None]
    ctx = Context(pos, source=torch.randn(1, 6, 16), source_pos=torch.arange(6)[None])
    with pytest.raises(ValueError, match="keys of another sequence"):
        layer(torch.randn(1, 4, 16), None, ctx)


def test_a_query_without_a_key_reads_nothing_and_leaves_gradients_finite() -> None:
    pattern, rows = Causal() & ~Band(0) & Band(3), Causal() & ~Band(0) & Rows((0, 4))
    layer = Attention(16, 2, GlobalSoftmax(pattern & ~Rows((0, 4)), rows), out=False)
    x, pos = torch.randn(3, LENGTH, 16, requires_grad=True), rows_padded_differently()
    y = layer(x, None, Context(pos)).y
    assert (y[pos < 1] == 0).all() and (y[pos >= 1] != 0).all()
    gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[0].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hugging_face_s_layer(dtype: torch.dtype) -> None:
    """transformers takes its local softmax in float32, so both dtypes agree to float32's precision."""
    longformer_module = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    window, heads, length = 3, 4, 24
    config = longformer_module.LongformerConfig(
        hidden_size=32, num_attention_heads=heads, attention_window=[2 * window], attention_probs_dropout_prob=0.0
    )
    theirs = longformer_module.LongformerSelfAttention(config, 0).to(dtype).eval()
    layer = Attention(32, heads, GlobalSoftmax(Band(window)), out=False).to(dtype)
    for ours, name in ((layer.projection.q, "query"), (layer.projection.k, "key"), (layer.projection.v, "value")):
        ours.load_state_dict(getattr(theirs, name).state_dict())
    for name in ("weight", "bias"):
        wide = [getattr(getattr(theirs, f"{what}_global"), name) for what in ("query", "key", "value")]
        columns = torch.cat([part.unflatten(0, (heads, -1)) for part in wide], 1).flatten(0, 1)
        getattr(layer.side, name).data.copy_(columns)
    x = torch.randn(2, length, 32, dtype=dtype)
    is_global, padding = torch.zeros(2, length, dtype=torch.bool), torch.zeros(2, length, dtype=torch.bool)
    is_global[0, 0] = is_global[1, [0, 11, 17]] = padding[1, 20:] = True
    mask = torch.where(padding, -10000.0, torch.where(is_global, 10000.0, 0.0)).to(dtype)
    expected = theirs(
        x, mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0, is_global_attn=True, output_attentions=False
    )[0]
    pos = torch.arange(length).repeat(2, 1).masked_fill(padding, -1)
    y = layer(x, None, Context(pos, also=Marked(is_global))).y
    torch.testing.assert_close(y[~padding], expected[~padding], rtol=0, atol=2e-6)
