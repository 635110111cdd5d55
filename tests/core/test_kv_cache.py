"""KV: new keys get into dead slots, live ones are never lost, and what a chunk reads is what was kept and itself."""

import os
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from kinformer.core.bias import Bias, ScoreFn
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.kv_cache import KV, update_cache, widen_caches
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.memo import Memo
from kinformer.core.pattern import pair_mask
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.state import detach, fork, leaves, reset, select, share_positions
from kinformer.members.gpt import gpt
from kinformer.nn.attention import Attention
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV
from tests.unhooked import unhooked


def empty(slots, batch=1, dtype=torch.float32):
    sizes = HeadSizes(1, 1, 1, 1, 1)
    return KV.empty(StateSpec(batch, slots, dtype, torch.device("cpu")), sizes, slots, {}, lambda keys: {})


def chunk(state, pos, pattern, own=True):
    """One head of width 1 whose keys are their own positions."""
    ctx = Context(pos)
    k = pos[:, None, :, None].float()
    queries = Queries(torch.zeros_like(k), ctx.by_head)
    return update_cache(state, Keys(k, k, ctx.by_head, own=own), queries, pattern, ctx)


def cache(pattern, slots, chunks):
    """Feed chunks one after the other; the state after each."""
    state, now = empty(slots), 0
    for n in chunks:
        _, state = chunk(state, torch.arange(now, now + n)[None], pattern)
        now += n
        yield state


def live_positions(state, pattern):
    """The positions that may still be read, by row, and that their keys are theirs."""
    live = (state.pos >= 0) & pattern.live(state.pos, state.now[:, None])
    assert torch.equal(state.k[:, 0, :, 0][live], state.pos[live].float())
    return [sorted(pos[row].tolist()) for pos, row in zip(state.pos, live, strict=True)]


@pytest.mark.parametrize("chunks", [[12], [1] * 12, [5, 1, 6], [2, 2, 3, 5]], ids=str)
def test_a_band_keeps_its_window_whatever_the_chunks(chunks):
    pattern = Causal() & Band(3)
    *_, state = cache(pattern, 5, chunks)
    assert live_positions(state, pattern) == [[9, 10, 11]] and int(state.now) == 12
    assert state.pos.shape[1] == 5


@pytest.mark.parametrize("chunks", [[3, 4, 5], [1] * 12, [12]], ids=str)
def test_tokens_and_band_keep_both(chunks):
    pattern = Causal() & (Band(2) | Tokens(2))
    *_, state = cache(pattern, 6, chunks)
    assert live_positions(state, pattern) == [[0, 1, 10, 11]] and state.pos.shape[1] == 6


@pytest.mark.parametrize("chunks", [[3, 3, 3], [1] * 9, [9], [4, 1, 4]], ids=str)
def test_a_cache_that_is_full_of_live_keys_grows_and_loses_none(chunks):
    *_, state = cache(Causal(), 4, chunks)
    assert live_positions(state, Causal()) == [list(range(9))] and state.pos.shape[1] >= 9


def test_what_a_chunk_reads_is_what_was_kept_and_itself():
    pattern = Causal() & Band(2)
    *_, state = cache(pattern, 8, [5])
    read, _ = chunk(state, torch.tensor([[5, 6]]), pattern)
    assert sorted(read.pos[read.pos >= 0].tolist()) == [3, 4, 5, 6]
    ctx = Context(torch.tensor([[5, 6]]))
    k = torch.zeros(1, 1, 2, 1)
    keys = Keys(k, k, ctx.by_head)
    same, no_state = update_cache(None, keys, Queries(k, ctx.by_head), pattern, ctx)
    assert same is keys and no_state is None


def test_a_first_chunk_reads_itself_alone():
    """Nothing was kept, so nothing is copied or masked for it."""
    ctx = Context(torch.arange(5)[None])
    keys = Keys(torch.randn(1, 1, 5, 1), torch.randn(1, 1, 5, 1), ctx.by_head)
    read, state = update_cache(empty(8), keys, Queries(keys.k, ctx.by_head), Causal(), ctx)
    assert (
        read is keys and torch.equal(state.k[:, :, :5], keys.k) and state.pos.tolist() == [[0, 1, 2, 3, 4, -1, -1, -1]]
    )


def test_a_step_reads_the_used_slots_and_needs_no_mask_where_it_may_read_them_all():
    ctx = Context(torch.tensor([[3]]))
    *_, state = cache(Causal(), 64, [3])
    k = torch.zeros(1, 1, 1, 1)
    read, _ = update_cache(state, Keys(k, k, ctx.by_head), Queries(k, ctx.by_head), Causal(), ctx)
    assert read.k.shape[2] == 4
    assert ctx.memo.get(lambda: "not made", "mask", Causal(), ctx.by_head, read.pos, range(1), None) is None
    banded, ctx = Causal() & Band(1), Context(torch.tensor([[3]]))
    *_, state = cache(Causal(), 64, [3])
    read, _ = update_cache(state, Keys(k, k, ctx.by_head), Queries(k, ctx.by_head), banded, ctx)
    mask = pair_mask(banded, ctx.by_head, read.pos, range(1))
    assert sorted(read.pos[0, 0][mask[0, 0, 0]].tolist()) == [2, 3]


def test_padding_is_never_kept_and_does_not_move_now():
    _, state = chunk(empty(6, 2), torch.tensor([[0, 1, -1], [-1, -1, -1]]), Causal())
    assert state.now.tolist() == [2, 0] and live_positions(state, Causal()) == [[0, 1], []]
    _, state = chunk(state, torch.tensor([[-1, -1], [-1, 7]]), Causal())
    assert state.now.tolist() == [2, 8] and live_positions(state, Causal()) == [[0, 1], [7]]
    _, state = chunk(state, torch.tensor([[2], [-1]]), Causal())
    assert state.now.tolist() == [3, 8] and live_positions(state, Causal()) == [[0, 1, 2], [7]]


def test_no_new_keys_leave_the_state_as_it_is():
    *_, state = cache(Causal(), 6, [3])
    read, same = chunk(state, torch.zeros(1, 0, dtype=torch.long), Causal())
    assert same is state and read.pos.tolist() == [[[0, 1, 2, -1, -1, -1]]]


def test_positions_are_never_written_in_place_and_keys_are():
    _, state = chunk(empty(6), torch.tensor([[0, 1]]), Causal())
    pos, now, before, place = state.pos, state.now, (state.pos.clone(), state.now.clone()), state.k.data_ptr()
    with torch.no_grad():  # where gradients are on nothing is written in place
        _, after = chunk(state, torch.tensor([[2]]), Causal())
    assert torch.equal(pos, before[0]) and torch.equal(now, before[1])
    assert after.k.data_ptr() == place and after.k[0, 0, :, 0].tolist() == [0, 1, 2, 0, 0, 0]


def test_reading_ahead_has_no_state_and_says_what_to_do():
    with pytest.raises(NoState, match=r"Causal\(\) & pattern, or generate"):
        Attention(QKV(4, 1), Softmax(Full())).start(1, 4)


def test_numbers_are_cast_to_the_caches_precision_on_write_and_back_on_read():
    state = empty(6, dtype=torch.bfloat16)
    for now, pos in enumerate((torch.tensor([[0, 1]]), torch.tensor([[2]]), torch.arange(3, 12)[None])):
        read, state = chunk(state, pos, Causal())
        assert state.k.dtype == state.v.dtype == torch.bfloat16
        assert read.k.dtype == read.v.dtype == torch.float32, now


# A source ------------------------------------------------------------------------------------------------------------


def test_a_source_replaces_what_was_kept_and_is_read_until_the_next():
    state = empty(0)
    read, state = chunk(state, torch.tensor([[0, 1, 2]]), Full(), own=False)
    assert read.pos.tolist() == [[[0, 1, 2]]] and live_positions(state, Full()) == [[0, 1, 2]]
    ctx = Context(torch.tensor([[5]]))
    queries = Queries(torch.zeros(1, 1, 1, 1), ctx.by_head)
    keys_again, same = update_cache(state, None, queries, Full(), ctx)
    assert not keys_again.own and keys_again.pos.tolist() == [[[0, 1, 2]]] and same is state
    _, state = chunk(state, torch.tensor([[0, 1]]), Full(), own=False)
    assert live_positions(state, Full()) == [[0, 1]]


def test_an_empty_source_replaces_too():
    _, state = chunk(empty(0), torch.tensor([[0, 1, 2]]), Full(), own=False)
    read, state = chunk(state, torch.zeros(1, 0, dtype=torch.long), Full(), own=False)
    assert read.k.shape[2] == 0 and state.pos.shape[1] == 0


def test_no_source_at_all_says_what_to_give():
    ctx = Context(torch.tensor([[5]]))
    for state in (None, empty(0)):
        with pytest.raises(ValueError, match=r"give ctx=Context.of_sequence\(x, source=source\) in the first call"):
            update_cache(state, None, Queries(torch.zeros(1, 1, 1, 1), ctx.by_head), Full(), ctx)


# Whole layers --------------------------------------------------------------------------------------------------------


class Everything(Bias):
    """Reads all that is cached beside a key."""

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {"weight": ExtraProjection(2)}

    def bind(self, piece: Request) -> ScoreFn:
        keys, asks = piece.keys, piece.queries.labels["segment"]
        heads = piece.queries.q.shape[1] // keys.k.shape[1]
        side = keys.extras["weight"].sum(-1).repeat_interleave(heads, 1)
        tag = keys.tags["sign"][..., 0].repeat_interleave(heads, 1)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + side[b, h, j] + tag[b, h, j] * 0.3 + (asks[b, i] == keys.labels["segment"][b, j]) * 0.7

        return score


class Tagged(Softmax):
    def tags(self, keys: Keys) -> Mapping[str, Tensor]:
        return {"sign": (keys.k[..., :1] > 0).long()}


PATTERNS = [Causal(), Causal() & Band(3), Causal() & (Band(2) | Strided(3) | Tokens(1))]
CHUNKS = [[14], [1] * 14, [5, 1, 1, 4, 3], [2, 9, 1, 2]]


def rows() -> Tensor:
    """Rows that begin late, pause and end early; every chunk of CHUNKS meets some padding."""
    return torch.tensor(
        [
            list(range(14)),
            [-1, -1, -1, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
            [0, 1, 2, -1, -1, -1, 3, 4, 5, -1, 6, 7, -1, -1],
            [-1] * 14,
        ]
    )


def layer_of(pattern, key_heads=2) -> Attention:
    torch.manual_seed(3)
    return Attention(QKV(16, 4, key_heads=key_heads, v_dim=3), Tagged(pattern, Everything())).double()


def fed(layer, x, pos, labels, chunks, state):
    ys, at = [], 0
    for n in chunks:
        window = slice(at, at + n)
        out = layer(x[:, window], state, Context(pos[:, window], labels={"segment": labels[:, window]}))
        ys.append(out.y)
        state, at = out.state, at + n
    return torch.cat(ys, 1), state


def live_of(state, pattern):
    """What is kept, sorted by position: leaves of live entries, row by row."""
    live = (state.pos >= 0) & pattern.live(state.pos, state.now[:, None])
    positions = []
    for b in range(len(live)):
        at = live[b].nonzero()[:, 0]
        at = at[state.pos[b, at].argsort()]
        positions.append(
            [state.pos[b, at], state.k[b][:, at], state.v[b][:, at]]
            + [side[b][:, at] for side in state.extras.values()]
            + [label[b, at] for label in state.labels.values()]
            + [tag[b][:, at] for tag in state.tags.values()]
        )
    return positions


def alike(first, other) -> bool:
    return all(
        torch.allclose(a.double(), b.double(), atol=1e-12)
        for x, y in zip(first, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize("expected_length", [14, 4], ids=["told", "longer than told"])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("learning", [False, True], ids=["in place", "functional"])
def test_any_chunks_of_rows_of_other_paddings_read_as_the_whole(pattern, chunks, expected_length, learning):
    """With labels, sides and tags of keys, in place where nothing learns, and by new tensors where something does."""
    layer, pos = layer_of(pattern), rows()
    x, labels = torch.randn(4, 14, 16, dtype=torch.float64), torch.randint(0, 2, (4, 14))
    with torch.set_grad_enabled(learning):
        whole = layer(x, None, Context(pos, labels={"segment": labels})).y
        y, state = fed(layer, x, pos, labels, chunks, layer.start(4, expected_length))
        once = fed(layer, x, pos, labels, [14], layer.start(4, 14))[1]
    real = pos >= 0
    assert torch.allclose(y[real], whole[real], atol=1e-12)
    assert alike(live_of(state, pattern), live_of(once, pattern)) and torch.equal(state.now, once.now)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_gradients_through_the_cache_are_those_of_the_whole(chunks):
    """A cut changes no gradient: no key that learns is written over."""
    pattern = Causal() & Band(3)
    layer, pos = layer_of(pattern), rows()[:3]
    x, labels = torch.randn(3, 14, 16, dtype=torch.float64, requires_grad=True), torch.randint(0, 2, (3, 14))
    real, parameters = pos >= 0, [x, *layer.parameters()]
    whole = layer(x, None, Context(pos, labels={"segment": labels})).y
    expected = torch.autograd.grad(whole[real].sin().sum(), parameters)
    y, _ = fed(layer, x, pos, labels, chunks, layer.start(3, 14))
    for first, other in zip(torch.autograd.grad(y[real].sin().sum(), parameters), expected, strict=True):
        assert torch.allclose(first, other, atol=1e-11)


def test_where_only_the_sides_learn_nothing_is_written_in_place_either():
    layer, pos, labels = layer_of(Causal()), torch.arange(6).expand(2, 6), torch.zeros(2, 6).long()
    layer.projection.requires_grad_(False)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    whole = layer(x, None, Context(pos, labels={"segment": labels})).y
    y, _ = fed(layer, x, pos, labels, [3, 1, 2], layer.start(2, 6))
    weight = layer.key_side.weight
    first, other = (torch.autograd.grad(z.sin().sum(), weight)[0] for z in (y, whole))
    assert torch.allclose(first, other, atol=1e-12)


def continued(layer, state, pos, x):
    labels = torch.zeros(pos.shape).long()
    return fed(layer, x, pos, labels, [1, 2], state)


def test_a_forked_state_goes_on_apart_from_its_origin():
    layer, x = layer_of(Causal() & Band(3)).requires_grad_(False), torch.randn(2, 9, 16, dtype=torch.float64)
    pos, labels = torch.arange(9).expand(2, 9), torch.zeros(2, 9).long()
    _, state = fed(layer, x[:, :6], pos[:, :6], labels, [6], layer.start(2, 9))
    copy = fork(state)
    first = continued(layer, copy, pos[:, 6:], x[:, 6:])[0]
    other = continued(layer, fork(state), pos[:, 6:], x[:, 6:] + 1)[0]
    unforked = continued(layer, state, pos[:, 6:], x[:, 6:])[0]
    assert torch.equal(first, unforked) and not torch.allclose(first, other)


def test_selected_rows_go_on_as_their_origins():
    layer, x = layer_of(Causal() & Band(3)).requires_grad_(False), torch.randn(4, 14, 16, dtype=torch.float64)
    pos, labels = rows(), torch.zeros(4, 14).long()
    at = torch.tensor([2, 0, 2])
    _, state = fed(layer, x[:, :8], pos[:, :8], labels, [5, 3], layer.start(4, 14))
    chosen = select(state, at)
    expected = fed(layer, x[:, 8:], pos[:, 8:], labels[:, 8:], [1, 5], state)[0][at]
    actual = fed(layer, x[at, 8:], pos[at, 8:], labels[at, 8:], [1, 5], chosen)[0]
    real = pos[at, 8:] >= 0
    assert torch.allclose(actual[real], expected[real], atol=1e-12)


def test_a_reset_row_is_a_fresh_one_and_the_others_go_on():
    layer, x = layer_of(Causal()).requires_grad_(False), torch.randn(2, 9, 16, dtype=torch.float64)
    pos, labels = torch.arange(9).expand(2, 9), torch.zeros(2, 9).long()
    _, state = fed(layer, x[:, :5], pos[:, :5], labels, [3, 2], layer.start(2, 9))
    state = reset(state, torch.tensor([False, True]))
    mixed = torch.stack([pos[0, 5:], pos[1, :4]])
    actual = fed(layer, x[:, 5:], mixed, labels, [1, 3], state)[0]
    fresh = fed(layer, x[1:, 5:], pos[1:, :4], labels[1:], [1, 3], layer.start(1, 9))[0]
    whole = layer(x, None, Context(pos, labels={"segment": labels})).y
    assert torch.allclose(actual[1], fresh[0], atol=1e-12) and torch.allclose(actual[0], whole[0, 5:], atol=1e-12)


def test_a_wider_cache_holds_the_same():
    layer, x = layer_of(Causal()).requires_grad_(False), torch.randn(2, 9, 16, dtype=torch.float64)
    pos, labels = torch.arange(9).expand(2, 9), torch.zeros(2, 9).long()
    _, state = fed(layer, x[:, :5], pos[:, :5], labels, [5], layer.start(2, 5))
    wide = widen_caches(fork(state), layer.start(2, 20))
    assert {leaf.shape[-1 if name in ("pos", "segment") else 2] for name, leaf in leaves(wide) if name != "now"} == {20}
    assert alike(live_of(wide, Causal()), live_of(state, Causal()))
    wide_y, other = (fed(layer, x[:, 5:], pos[:, 5:], labels, [1, 3], each)[0] for each in (wide, state))
    assert torch.allclose(wide_y, other, atol=1e-12)


def test_layers_share_one_plan_and_look_at_the_device_once(monkeypatch):
    looks = []
    monkeypatch.setattr(Memo, "look", lambda self, *numbers, look=Memo.look: looks.append(1) or look(self, *numbers))
    stack = Stack([Attention(QKV(8, 2), Softmax(Causal() & Band(3))) for _ in range(3)]).requires_grad_(False)
    state, x = share_positions(stack.start(2, 9)), torch.randn(2, 9, 8)
    pos, counts, ys = torch.arange(9).expand(2, 9), [], []
    for lo, hi in ((0, 5), (5, 6), (6, 8), (8, 9)):
        out = stack(x[:, lo:hi], state, Context(pos[:, lo:hi]))
        state = out.state
        assert len({id(leaf.pos) for leaf in state}) == len({id(leaf.now) for leaf in state}) == 1
        counts.append(len(looks))
        ys.append(out.y)
    assert counts == [1, 2, 3, 4]
    assert torch.allclose(torch.cat(ys, 1), stack(x).y, atol=1e-5)


# Compiled ------------------------------------------------------------------------------------------------------------


BACKEND = "aot_eager" if os.environ.get("KINFORMER_PROVE") == "1" else "eager"


@torch.no_grad()
def compiled() -> dict[str, bool]:
    """A cache told of 4 tokens: steps and chunks of a compiled layer, and a fifth token in the first row alone."""
    torch.manual_seed(0)
    results = {}
    for name, pattern in (("all", Causal()), ("band", Causal() & Band(3))):
        layer = Attention(QKV(16, 2), Softmax(pattern))
        whole = torch.compile(layer, backend=BACKEND, fullgraph=True)
        x = torch.randn(2, 6, 16)
        for kind, cuts in (("steps", [1] * 4), ("chunks", [2, 2])):
            torch._dynamo.reset()  # chunks and steps of one layer are more shapes and strides than it compiles
            slow = layer.start(2, 4)
            fast, at = fork(slow), 0
            for n in cuts:
                pos = torch.arange(at, at + n).expand(2, n)
                first, other = (
                    whole(x[:, at : at + n], fast, Context(pos)),
                    layer(x[:, at : at + n], slow, Context(pos)),
                )
                fast, slow, at = first.state, other.state, at + n
                results[f"{name} {kind} {at}"] = torch.allclose(first.y, other.y, atol=1e-5)
            pos = torch.tensor([[4, 5], [4, -1]] if kind == "chunks" else [[4], [-1]])
            eager = layer(x[:, 4 : 4 + pos.shape[1]], slow, Context(pos)).y
            y = whole(x[:, 4 : 4 + pos.shape[1]], fast, Context(pos)).y
            real = pos >= 0
            if name == "band":  # what leaves the window makes room
                results[f"{name} {kind} beyond"] = torch.allclose(y[real], eager[real], atol=1e-5)
            elif kind == "steps":
                results[f"{name} {kind} beyond is NaN"] = bool(y[0].isnan().all()) and bool(y[1].isfinite().all())
            else:  # the chunk itself reads what there was; the next call finds that a key is gone
                state = whole(x[:, 4:6], _refed(layer, x), Context(pos)).state
                after = whole(x[:, :1], state, Context(torch.tensor([[6], [5]]))).y
                results[f"{name} {kind} beyond is NaN"] = bool(after.isnan().all())
    return results


def _refed(layer: Attention, x: Tensor) -> KV:
    return layer(x[:, :4], layer.start(2, 4), Context(torch.arange(4).expand(2, 4))).state


def test_a_compiled_layer_equals_eager_or_reads_nan_never_a_wrong_number():
    results = unhooked(f"{__name__}:{compiled.__name__}")
    assert len(results) == 16 and [name for name, good in results.items() if not good] == []


def test_where_gradients_are_on_a_frozen_cache_is_not_written_in_place():
    """A trainable bias keeps what was read of the cache for its backward, though neither keys nor values learn."""
    _, state = chunk(empty(6), torch.tensor([[0, 1]]), Causal())
    place = state.k.data_ptr()
    _, after = chunk(state, torch.tensor([[2]]), Causal())
    assert after.k.data_ptr() != place


def test_labels_that_earlier_tokens_lacked_are_of_none_and_missing_ones_are_refused():
    layer, x = Attention(QKV(8, 2), Softmax(Causal())), torch.randn(1, 4, 8)
    pos, label = torch.arange(4)[None], {"segment": torch.tensor([[0, 0]])}
    out = layer(x[:, :2], layer.start(1, 4), Context(pos[:, :2], run=True))
    out = layer(x[:, 2:], out.state, Context(pos[:, 2:], run=True, labels=label))
    assert out.state.labels["segment"].tolist() == [[-1, -1, 0, 0]]
    with pytest.raises(ValueError, match="earlier tokens of the row have them"):
        layer(x[:, :1], out.state, Context(pos[:, :1] + 4, run=True))


def test_a_layer_goes_on_where_its_state_has_come_to():
    layer, x = Attention(QKV(8, 2), Softmax(Causal())), torch.randn(2, 6, 8)
    first = layer(x[:, :4], layer.start(2, 6))
    torch.testing.assert_close(layer(x[:, 4:], first.state).y, layer(x).y[:, 4:])


def test_a_batch_of_no_rows_has_a_state_too():
    layer = Attention(QKV(8, 2), Softmax(Causal()))
    assert layer(torch.zeros(0, 3, 8), layer.start(0, 5)).y.shape == (0, 3, 8)


def test_a_source_is_kept_as_precisely_as_start_was_told():
    layer = Attention(QKV(8, 2), Softmax(Full()), cross=True)
    ctx = Context(torch.arange(2)[None], source=torch.randn(1, 3, 8), source_pos=torch.arange(3)[None])
    state = layer(torch.randn(1, 2, 8), layer.start(1, 5, dtype=torch.bfloat16), ctx).state
    assert state.k.dtype == state.v.dtype == torch.bfloat16
    assert layer(torch.randn(1, 2, 8), state, Context(torch.arange(2)[None])).y.dtype == torch.float32


def test_a_promise_of_a_call_says_nothing_of_a_source_that_is_kept():
    layer = Attention(QKV(8, 2), Softmax(Full(), lse=False), cross=True)
    source_pos, x = torch.tensor([[0, 1, 2, -1, -1]]), torch.randn(1, 1, 8)
    ctx = Context(torch.tensor([[0]]), source=torch.randn(1, 5, 8), source_pos=source_pos)
    state = layer(x, layer.start(1, 5), ctx).state
    plain = layer(x, state, Context(torch.tensor([[1]]), run=True)).y
    torch.testing.assert_close(layer(x, state, Context(torch.tensor([[1]]), run=True, full=True)).y, plain)


# Spent states --------------------------------------------------------------------------------------------------------


def window_layer():
    """A ring of four slots: a later step overwrites a key that an earlier state still counts on."""
    layer, x = Attention(QKV(8, 2), Softmax(Causal() & Band(3))).eval(), torch.randn(1, 8, 8)
    return layer, x, layer(x).y


@torch.no_grad()
def test_a_state_that_a_later_call_has_written_into_is_refused():
    layer, x, whole = window_layer()
    first = layer(x[:, :6], layer.start(1, 8)).state
    kept = fork(first)
    second = layer(x[:, 6:7], first)
    for spent in (first, first):
        with pytest.raises(ValueError, match=r"^this decoding state is spent: .* call kf\.fork\(state\) before"):
            layer(x[:, 6:7], spent)
    torch.testing.assert_close(layer(x[:, 7:], second.state).y, whole[:, 7:])
    torch.testing.assert_close(layer(x[:, 6:7], kept).y, whole[:, 6:7])


@torch.no_grad()
def test_copies_of_a_spent_state_are_refused_too():
    """The copy would hold the keys of a later state under the positions of the earlier one."""
    layer, x, _ = window_layer()
    first = layer(x[:, :6], layer.start(1, 8)).state
    layer(x[:, 6:7], first)
    rows = torch.tensor([0])
    for copy in (fork, detach, lambda state: select(state, rows), lambda state: reset(state, rows.bool())):
        with pytest.raises(ValueError, match="this decoding state is spent"):
            copy(first)


@torch.no_grad()
def test_a_model_s_state_that_was_passed_on_is_refused():
    model, rows = gpt(d=8, depth=2, heads=2, vocab=11).eval(), torch.arange(6)[None]
    state = model.logits(rows[:, :4], model.start(1, 6)).state
    model.logits(rows[:, 4:], state)
    with pytest.raises(ValueError, match="this decoding state is spent"):
        model.logits(rows[:, 4:], state)


def test_with_gradients_nothing_is_written_so_a_state_may_be_used_again():
    layer, x, whole = window_layer()
    state = layer(x[:, :6], layer.start(1, 8)).state
    for _ in range(2):
        torch.testing.assert_close(layer(x[:, 6:7], state).y, whole[:, 6:7])


@torch.no_grad()
def compiled_steps_between_others() -> float:
    layer, x, whole = window_layer()
    step = torch.compile(layer, backend="eager")
    out, worst = layer(x[:, :4], layer.start(1, 8)), 0.0
    for n in range(4, 8):
        out = (step if n % 2 else layer)(x[:, n : n + 1], out.state)
        worst = max(worst, float((out.y - whole[:, n : n + 1]).abs().max()))
    return worst


def test_compiled_steps_between_others_are_no_false_alarm():
    assert unhooked(f"{__name__}:{compiled_steps_between_others.__name__}") < 1e-6
