"""GlobalSoftmax: Longformer's attention by loops, decoding with global tokens per example, and Hugging Face's layer."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.attend import attend
from kinformer.core.attention_output import merge
from kinformer.core.heads import HeadSizes, StateSpec
from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, State
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.projection import by_head
from kinformer.core.state import fork, leaves, reset, select
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.biases.relative import Relative
from kinformer.nn.depth.global_nodes import GlobalNodes
from kinformer.nn.mechanisms.global_softmax import GlobalSoftmax
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.marked import Marked, MarkedKeys, MarkedRows
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.shifted import Shifted
from kinformer.nn.patterns.tail import Tail
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")

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
    heads, size = layer.sizes.heads, layer.sizes.k_dim
    queries, keys = layer.projection(x, pos, x, pos)
    local = queries.q, keys.k, keys.v
    wide = [by_head(part, heads) for part in (layer.side(x), *layer.key_side(x).chunk(2, -1))]
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
    return layer.aggregation(y, pos)


def shaken(layer: Attention) -> Attention:
    """Global projections of their own, where a new layer has copies of the local ones."""
    for matrix in (layer.side, layer.key_side):
        assert matrix is not None
        for weight in matrix.parameters():
            weight.data.add_(torch.randn_like(weight))
    return layer


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_global_tokens_of_each_example(causal: bool) -> None:
    layer, x, pos = Attention(QKV(16, 2), GlobalSoftmax(Band(2))), torch.randn(3, LENGTH, 16), rows_padded_differently()
    ctx = Context(pos, only=Causal() if causal else None, also=Marked(MASK))
    close(layer(x, None, ctx).y[pos >= 0], longformer(x, pos, layer, 2, MASK, causal)[pos >= 0])


@pytest.mark.parametrize("causal", [False, True])
def test_global_tokens_of_all_examples(causal: bool) -> None:
    pattern, rows = Band(2) | Tokens((1, 6)), Rows((1, 6))
    mechanism = GlobalSoftmax(Causal() & pattern, Causal() & rows) if causal else GlobalSoftmax(pattern, rows)
    layer, x, pos = Attention(QKV(16, 2), mechanism), torch.randn(3, LENGTH, 16), rows_padded_differently()
    mask = torch.zeros(3, LENGTH, dtype=torch.bool)
    mask[:, [1, 6]] = True
    close(layer(x, None, Context(pos)).y[pos >= 0], longformer(x, pos, layer, 2, mask, causal)[pos >= 0])


def test_both_kinds_of_global_tokens_at_once() -> None:
    layer, x = Attention(QKV(16, 2), GlobalSoftmax(Band(1) | Tokens(1), Rows(1))), torch.randn(3, LENGTH, 16)
    pos, mask = rows_padded_differently(), MASK.clone()
    mask[:, 0] = True
    also = MarkedKeys(MASK) | MarkedRows(MASK)
    close(layer(x, None, Context(pos, also=also)).y[pos >= 0], longformer(x, pos, layer, 1, mask, False)[pos >= 0])


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_it_starts_as_copies_of_the_local_projections_and_so_as_softmax(key_heads: int, bias: bool) -> None:
    """Row 54 of the paper's table: Q_g, K_g, V_g initialised equal (A20)."""
    pattern = Band(2) | Tokens(2)
    layer = Attention(QKV(16, 4, key_heads=key_heads, bias=bias), GlobalSoftmax(pattern, Rows(2), scale=0.3))
    plain = Attention(QKV(16, 4, key_heads=key_heads, bias=bias), Softmax(pattern | Rows(2), scale=0.3))
    plain.load_state_dict({key: value for key, value in layer.state_dict().items() if "side." not in key})
    x, pos = torch.randn(3, LENGTH, 16), rows_padded_differently()
    close(layer(x, None, Context(pos)).y, plain(x, None, Context(pos)).y)


def test_the_last_tokens_of_each_example_are_global_too() -> None:
    """Tail: from a position of its own in each row they read with the global projections."""
    layer, x, pos = Attention(QKV(16, 2), GlobalSoftmax(Band(2))), torch.randn(3, LENGTH, 16), rows_padded_differently()
    first = torch.tensor([[9], [8], [99]])
    mask = torch.arange(LENGTH).expand(3, -1) >= first
    layer = shaken(layer)
    close(
        layer(x, None, Context(pos, also=Tail(first))).y[pos >= 0], longformer(x, pos, layer, 2, mask, False)[pos >= 0]
    )


def test_a_bias_counts_in_both_reads() -> None:
    """As copies of the local ones, the global projections read under the bias as Softmax does; anew, they do not."""
    pattern, relative = Band(2) | Tokens(2), Relative(8, 3)
    layer = Attention(QKV(16, 2), GlobalSoftmax(pattern, Rows(2), relative))
    plain = Attention(layer.projection, Softmax(pattern | Rows(2), relative), aggregation=layer.aggregation)
    x, pos = torch.randn(3, LENGTH, 16), rows_padded_differently()
    close(layer(x, None, Context(pos)).y, plain(x, None, Context(pos)).y)
    anew = Attention(QKV(16, 2), GlobalSoftmax(pattern, Rows(2), relative, copied=False))
    assert not torch.allclose(anew.side.weight, anew.projection.matrix("q")[0])
    assert [name for name, _ in anew.named_parameters() if "keys" in name] == ["mechanism.near.bias.keys"]


class Projected(GlobalSoftmax):
    """Every global query, key and value is made."""

    def wants_lazy_extras(self, sizes: HeadSizes, ctx: Context) -> bool:
        return False


def learned(layer: Attention, x: Tensor, ctx: Context) -> list[Tensor]:
    """What a layer reads at real tokens, and all gradients."""
    x = x.clone().requires_grad_()
    y = layer(x, None, ctx).y[ctx.pos >= 0]
    return [y, *torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))]


PAIRS = [(Band(2) | Tokens(1), Rows((0, 5))), (Causal() & Band(2), Causal() & Rows((1, 6))), (Band(1), Rows(0))]


@pytest.mark.parametrize("also", [None, Marked(MASK)], ids=["none", "marked"])
@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize(("pattern", "rows"), PAIRS, ids=str)
def test_few_global_queries_read_what_is_not_projected(
    pattern: Pattern, rows: Pattern, key_heads: int, also: Pattern | None
) -> None:
    layer = shaken(Attention(QKV(64, 2, key_heads=key_heads), GlobalSoftmax(pattern, rows, scale=0.3)))
    whole = Attention(layer.projection, Projected(pattern, rows, scale=0.3), aggregation=layer.aggregation)
    whole.load_state_dict(layer.state_dict())
    x, ctx = 0.1 * torch.randn(3, LENGTH, 64), Context(rows_padded_differently(), also=also)
    narrow = layer.sizes._replace(k_dim=2)
    assert layer.mechanism.wants_lazy_extras(layer.sizes, ctx) and not GlobalSoftmax(
        pattern, Rows(9)
    ).wants_lazy_extras(narrow, ctx)
    for ours, theirs in zip(learned(layer, x, ctx), learned(whole, x, ctx), strict=True):
        size = theirs.abs().amax().clamp_min(1.0)
        close(ours / size, theirs / size)
    calls, row_counts = [layer(x, None, ctx).y, whole(x, None, ctx).y], list[int]()
    hook = layer.key_side.register_forward_hook(lambda *_: row_counts.append(1))
    calls.append(layer(x, None, ctx).y)
    hook.remove()
    assert row_counts == [1], "who looks on sees every key"
    for other in calls[1:]:
        torch.testing.assert_close(calls[0], other)


def test_weights_are_dropped_in_training_alone() -> None:
    layer, x = Attention(QKV(16, 2), GlobalSoftmax(Band(2), Rows(3), dropout=0.5)), torch.randn(2, 9, 16)
    ctx = Context(torch.arange(9).repeat(2, 1))
    y, repeated = layer(x, None, ctx).y, layer(x, None, ctx).y
    assert not torch.allclose(y[:, :3], repeated[:, :3]) and not torch.allclose(y[:, 3:], repeated[:, 3:])
    layer.eval()
    assert torch.equal(layer(x, None, ctx).y, layer(x, None, ctx).y)


def in_chunks(layer: Attention, x: Tensor, pos: Tensor, cuts: list[int], state: State, **patterns: Pattern) -> tuple:
    done = []
    for piece, piece_pos in zip(x.split(cuts, 1), pos.split(cuts, 1), strict=True):
        out = layer(piece, state, Context(piece_pos, **patterns))
        state = out.state
        done.append(out.y)
    return torch.cat(done, 1), state


def alive(state: KV, pattern: Pattern) -> list[list[int]]:
    """The positions of each row that a query after the last one may read."""
    live = (state.pos >= 0) & pattern.live(state.pos, torch.full((len(state.pos), 1), LENGTH))
    return [sorted(row[mark].tolist()) for row, mark in zip(state.pos, live, strict=True)]


CUTS = [[1] * LENGTH, [3, 1, 8], [7, 4, 1], [LENGTH]]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("marks", [Marked, MarkedKeys, MarkedRows])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_it_decodes_with_global_tokens_of_each_example(marks: type[Pattern], cuts: list[int], key_heads: int) -> None:
    layer = shaken(Attention(QKV(16, 2, key_heads=key_heads), GlobalSoftmax(Causal() & Band(2))))
    x, pos, patterns = torch.randn(3, LENGTH, 16), rows_padded_differently(), {"only": Causal(), "also": marks(MASK)}
    whole = layer(x, None, Context(pos, **patterns)).y
    y, _ = in_chunks(layer, x, pos, cuts, layer.start(3, LENGTH), **patterns)
    close(y[pos >= 0], whole[pos >= 0])


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_it_decodes_with_global_tokens_of_all_examples(cuts: list[int]) -> None:
    layer = Attention(QKV(16, 2), GlobalSoftmax(Causal() & (Band(2) | Tokens((1, 6))), Causal() & Rows((1, 6))))
    x, pos = torch.randn(3, LENGTH, 16), rows_padded_differently()
    y, state = in_chunks(layer, x, pos, cuts, layer.start(3, LENGTH))
    close(y[pos >= 0], layer(x, None, Context(pos)).y[pos >= 0])
    assert alive(state.near, layer.mechanism.pattern)[0] == [1, 6, 10, 11]
    assert alive(state.wide, layer.mechanism.rows)[0] == [], "no global query can come any more"


def test_all_global_keys_are_kept_while_a_global_query_may_come() -> None:
    layer = Attention(QKV(16, 2), GlobalSoftmax(Causal() & Band(2)))
    x, pos, patterns = (
        torch.randn(3, LENGTH, 16),
        rows_padded_differently(),
        {"only": Causal(), "also": MarkedRows(MASK)},
    )
    _, state = in_chunks(layer, x, pos, [5, 7], layer.start(3, LENGTH), **patterns)
    assert alive(state.wide, MarkedRows(MASK)) == [list(range(n)) for n in (12, 10, 9)]
    assert {name for name, _ in leaves(state)} == {"k", "v", "pos", "now"}


def test_no_slots_are_kept_for_global_queries_that_cannot_come() -> None:
    """A20: 10,000 dead slots used to be scored at every step."""
    layer = Attention(QKV(16, 2), GlobalSoftmax(Causal() & Band(3)))
    state = layer.start(1, 10_000)
    assert state.wide.pos.shape[1] == 0 and state.near.pos.shape[1] <= 5
    x, pos = torch.randn(1, 12, 16), torch.arange(12)[None]
    y, state = in_chunks(layer, x, pos, [5, 1, 1, 5], state)
    close(y, layer(x).y)
    assert state.wide.pos.shape[1] == 0
    first = Attention(QKV(16, 2), GlobalSoftmax(Causal() & Band(3), Causal() & Rows(2))).start(1, 10_000)
    assert first.wide.pos.shape[1] <= 3


def test_slots_grow_where_a_batch_marks_global_queries() -> None:
    layer = shaken(Attention(QKV(16, 2), GlobalSoftmax(Causal() & Band(3))))
    marked = torch.zeros(1, 40, dtype=torch.bool)
    marked[0, 39] = True
    x, pos, patterns = torch.randn(1, 40, 16), torch.arange(40)[None], {"only": Causal(), "also": Marked(marked)}
    y, _ = in_chunks(layer, x, pos, [1] * 40, layer.start(1, 40), **patterns)
    close(y, layer(x, None, Context(pos, **patterns)).y)


LIMITS = [(Band(3), None), (Causal() & Band(3), Causal())]


@pytest.mark.parametrize(("pattern", "only"), LIMITS, ids=["encoder", "decoder"])
def test_with_global_tokens_of_each_example_rows_do_not_matter_to_each_other(
    pattern: Pattern, only: Pattern | None
) -> None:
    """Batch mates, padding at either end and any length, with an own mask in every row."""
    layer = shaken(Attention(QKV(16, 2), GlobalSoftmax(pattern)))
    for length in (1, 2, 7, LENGTH):
        x, marked = torch.randn(3, length, 16), torch.rand(3, LENGTH + 4) < 0.3
        pos = torch.arange(length).expand(3, -1)
        whole = layer(x, None, Context(pos, only=only, also=Marked(marked))).y
        padded, padded_pos = 100 * torch.randn(3, length + 4, 16), torch.full((3, length + 4), -1)
        for row in range(3):
            padded[row, row : row + length], padded_pos[row, row : row + length] = x[row], pos[row]
        other = layer(padded, None, Context(padded_pos, only=only, also=Marked(marked))).y
        for row in range(3):
            alone = layer(x[row : row + 1], None, Context(pos[:1], only=only, also=Marked(marked[row : row + 1]))).y
            close(alone[0], whole[row])
            close(other[row, row : row + length], whole[row])


def test_with_global_tokens_of_each_example_a_decoder_does_not_peek() -> None:
    layer, marked = shaken(Attention(QKV(16, 2), GlobalSoftmax(Causal() & Band(3)))), torch.rand(3, LENGTH) < 0.4
    x, patterns = torch.randn(3, LENGTH, 16), {"only": Causal(), "also": Marked(marked)}
    pos = torch.arange(LENGTH).expand(3, -1)
    whole = layer(x, None, Context(pos, **patterns)).y
    for t in range(LENGTH - 1):
        later = torch.cat([x[:, : t + 1], torch.randn(3, LENGTH - t - 1, 16)], 1)
        close(layer(later, None, Context(pos, **patterns)).y[:, : t + 1], whole[:, : t + 1])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2e-2), (torch.float16, 5e-3)])
def test_in_half_precision_it_is_near_itself(dtype: torch.dtype, bound: float) -> None:
    layer, x = shaken(Attention(QKV(16, 2), GlobalSoftmax(Band(3)))), torch.randn(3, LENGTH, 16)
    ctx = Context(torch.arange(LENGTH).expand(3, -1), also=Marked(MASK))
    for weight in layer.parameters():
        weight.data = weight.data.to(dtype).double()
    exact = layer(x.to(dtype).double(), None, ctx).y
    assert (layer.to(dtype)(x.to(dtype), None, ctx).y.double() - exact).norm() < bound * exact.norm()


def test_rows_of_its_state_are_reset_selected_and_forked() -> None:
    layer, patterns = Attention(QKV(16, 2), GlobalSoftmax(Causal() & Band(2))), {"only": Causal(), "also": Marked(MASK)}
    x, pos = torch.randn(3, LENGTH, 16), torch.arange(LENGTH).repeat(3, 1)
    _, state = in_chunks(layer, x[:, :6], pos[:, :6], [6], layer.start(3, LENGTH), **patterns)
    rest = Context(pos[:, 6:], **patterns)
    expected = layer(x[:, 6:], fork(state), rest).y
    rows_kept = torch.tensor([1, 1, 0])
    chosen = Context(pos[:, 6:], only=Causal(), also=Marked(MASK[rows_kept]))
    close(layer(x[rows_kept, 6:], select(state, rows_kept), chosen).y, expected[rows_kept])
    anew = Context(torch.stack([pos[0, 6:], pos[0, :6], pos[0, 6:]]), **patterns)
    y = layer(x[:, 6:], reset(state, torch.tensor([False, True, False])), anew).y
    close(y[1], layer(x[:, 6:], layer.start(3, LENGTH), anew).y[1])
    close(y[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("mechanism", [GlobalSoftmax(Band(2)), GlobalSoftmax(Causal() & Band(2), Rows(2))])
def test_what_reads_ahead_has_no_state(mechanism: GlobalSoftmax) -> None:
    with pytest.raises(NoState, match="use Causal\\(\\) & pattern"):
        mechanism.start(StateSpec(1, 8, torch.float64, torch.device("cpu")), HeadSizes(2, 2, 2, 8, 8))


def test_additions_without_a_limit_read_ahead_and_are_refused_with_a_state() -> None:
    layer = Attention(QKV(16, 2), GlobalSoftmax(Causal() & Band(2)))
    with pytest.raises(NoState):
        layer(torch.randn(3, 2, 16), layer.start(3, 8), Context(torch.arange(2).repeat(3, 1), also=Marked(MASK)))


@pytest.mark.parametrize("also", [Marked(MASK) & Causal(), ~MarkedRows(MASK), Tokens(1) | (Rows(1) & Causal())])
def test_additions_that_hide_who_is_global_are_refused(also: Pattern) -> None:
    layer = Attention(QKV(16, 2), GlobalSoftmax(Band(2)))
    with pytest.raises(ValueError, match="cannot tell which queries"):
        layer(torch.randn(3, 4, 16), None, Context(torch.arange(4).repeat(3, 1), also=also))


@pytest.mark.parametrize("sources", [4, 6])
def test_in_cross_attention_global_queries_read_the_whole_source(sources: int) -> None:
    """A4: a global query used to read its own sequence; told that keys are a source's, also where lengths are equal."""
    layer = shaken(Attention(QKV(16, 2), GlobalSoftmax(Band(1), Rows(2)), cross=True))
    x, source, pos = torch.randn(3, 4, 16), torch.randn(3, sources, 16), torch.arange(4).expand(3, -1)
    source_pos = torch.arange(sources).repeat(3, 1)
    source_pos[1, 3:] = -1
    whole = layer(x, None, Context(pos, source=source, source_pos=source_pos)).y
    p, size = layer.projection, layer.sizes.k_dim
    queries, keys = p(x, pos, source, source_pos)
    wide = [by_head(part, 2) for part in (layer.side(x), *layer.key_side(source).chunk(2, -1))]
    y = torch.zeros(3, 2, 4, size)
    for b, h, i in ((b, h, i) for b in range(3) for h in range(2) for i in range(4)):
        q, k, v = wide if i < 2 else (queries.q, keys.k, keys.v)
        js = [j for j in range(sources) if source_pos[b, j] >= 0 and (i < 2 or abs(i - j) <= 1)]
        if js:
            weights = (k[b, h, js] @ q[b, h, i] / math.sqrt(size)).softmax(0)
            y[b, h, i] = weights @ v[b, h, js]
    close(whole, layer.aggregation(y, pos))
    out = layer(x[:, :1], layer.start(3, 4), Context(pos[:, :1], source=source, source_pos=source_pos))
    close(torch.cat([out.y, layer(x[:, 1:], out.state, Context(pos[:, 1:])).y], 1), whole)


def test_remembering_alone_leaves_the_same_state() -> None:
    layer, x = (
        shaken(Attention(QKV(16, 2), GlobalSoftmax(Causal() & Band(2), Causal() & Rows(9)))),
        torch.randn(2, 6, 16),
    )
    ctx = Context.of_sequence(x)
    expected, actual = (
        layer(x, layer.start(2, 9), ctx).state,
        layer(x, layer.start(2, 9), ctx.replace(remember=True)).state,
    )
    for (_, leaf), (_, other) in zip(leaves(expected), leaves(actual), strict=True):
        close(leaf, other)  # to rounding: products of other shapes round otherwise on some machines


def test_a_query_without_a_key_reads_nothing_and_leaves_gradients_finite() -> None:
    pattern, rows = Causal() & ~Band(0) & Band(3), Causal() & ~Band(0) & Rows((0, 4))
    layer = Attention(QKV(16, 2), GlobalSoftmax(pattern & ~Rows((0, 4)), rows), aggregation=Concat())
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
    layer = Attention(QKV(32, heads), GlobalSoftmax(Band(window)), aggregation=Concat()).to(dtype)
    for name in ("weight", "bias"):
        local = [getattr(getattr(theirs, side), name) for side in ("query", "key", "value")]
        wide = [getattr(getattr(theirs, f"{side}_global"), name) for side in ("query", "key", "value")]
        getattr(layer.projection.qkv, name).data.copy_(torch.cat(local))
        getattr(layer.side, name).data.copy_(wide[0])
        getattr(layer.key_side, name).data.copy_(torch.cat(wide[1:]))
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


@pytest.mark.parametrize("marks", [Marked, MarkedRows])
def test_behind_nodes_the_marked_tokens_of_a_text_are_still_global(marks: type[Pattern]) -> None:
    """They used to read with the local projections: the additions of a batch come wrapped in `Shifted` there."""
    inner = shaken(Attention(QKV(16, 2), GlobalSoftmax(Shifted(Band(1), 2) | Tokens(2))))
    nodes = GlobalNodes(inner, 2)
    x, node_mask = torch.randn(3, LENGTH, 16), torch.nn.functional.pad(MASK, (2, 0))
    joined, at = torch.cat([nodes.node.expand(3, 2, 16), x], 1), torch.arange(LENGTH + 2).repeat(3, 1)
    # the same limits, written with the positions that the layer sees
    also = marks(node_mask) & Shifted(Full(), 2)
    near = (inner.mechanism.pattern | also) & ~(MarkedRows(node_mask) & Shifted(Full(), 2))
    queries, keys = inner.projection(joined, at, joined, at)
    wide = [by_head(part, 2) for part in (inner.side(joined), *inner.key_side(joined).chunk(2, -1))]
    pos = {"q_pos": at[:, None], "k_pos": at[:, None]}
    local = attend(queries.q, keys.k, keys.v, **pos, pattern=near)
    far = attend(*wide, **pos, pattern=MarkedRows(node_mask) & Shifted(Full(), 2))
    want = inner.aggregation(merge(local, far).y, at)[:, 2:]
    close(nodes(x, None, Context(at[:, :LENGTH], also=marks(MASK))).y, want)


def test_behind_nodes_additions_that_hide_who_is_global_are_refused_too() -> None:
    layer = GlobalNodes(Attention(QKV(16, 2), GlobalSoftmax(Band(2))), 1)
    with pytest.raises(ValueError, match="cannot tell which queries"):
        layer(torch.randn(3, LENGTH, 16), None, Context(torch.arange(LENGTH).repeat(3, 1), also=~MarkedRows(MASK)))
