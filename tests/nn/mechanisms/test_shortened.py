"""Shortened: a mechanism over pooled keys is that mechanism over their means; rows in pieces, and without a mask."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from kinformer.attend import attend
from kinformer.attend import fused_kernel as kernel
from kinformer.attend.executors import pieces
from kinformer.core import score_matrix as core_scores
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.null_key import NullKey
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.shorteners.conv_shortener import ConvShortener
from kinformer.nn.shorteners.linformer import Linformer
from kinformer.nn.shorteners.max_pooled import MaxPooled
from kinformer.nn.shorteners.mean_pooled import MeanPooled

pytestmark = pytest.mark.usefixtures("float64")
X = torch.randn(2, 9, 8, dtype=torch.float64)
POS = torch.arange(9).expand(2, 9)


def layer(mechanism, **keywords):
    torch.manual_seed(1)
    return Attention(QKV(8, 2, **keywords), mechanism)


@pytest.mark.parametrize("pattern", [Full(), Causal(), Causal() & Band(4)], ids=str)
@pytest.mark.parametrize("key_heads", [1, 2])
def test_it_reads_the_means_where_they_stand(pattern, key_heads):
    part = layer(Shortened(Softmax(pattern, ALiBi(2)), MeanPooled(3)), key_heads=key_heads)
    queries, keys = part.projection.queries_and_keys(X, POS)
    means = [x.unflatten(2, (3, 3)).mean(3) for x in (keys.k, keys.v)]
    at = torch.tensor([2, 5, 8]).expand(2, 1, 3)
    expected = attend(queries.q, *means, pattern=pattern, bias=ALiBi(2), q_pos=POS[:, None], k_pos=at).y
    assert torch.allclose(part(X).y, part.aggregation(expected, POS), atol=1e-13)


def test_one_key_a_piece_is_the_mechanism_itself():
    plain, short = layer(Softmax(Causal())), layer(Shortened(Softmax(Causal()), MeanPooled(1)))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :3] = False
    ctx = Context.of_sequence(X, mask)
    assert torch.allclose(plain(X, None, ctx).y, short(X, None, ctx).y, atol=1e-13)


def test_under_causal_no_query_sees_what_comes_after_it():
    part = layer(Shortened(Softmax(Causal()), MeanPooled(2)))
    x = X.clone().requires_grad_()
    y = part(x).y
    for t in range(9):
        (grad,) = torch.autograd.grad(y[:, t].sum(), x, retain_graph=True)
        assert grad[:, t + 1 :].count_nonzero() == 0


def test_under_causal_a_later_token_changes_nothing_by_being_there():
    """The last mean, which may be of fewer tokens than the others, is read only when it is whole."""
    part = layer(Shortened(Softmax(Causal()), MeanPooled(4)))
    whole = part(X).y
    for t in range(1, 9):
        assert torch.allclose(part(X[:, :t]).y, whole[:, :t], atol=1e-13)


def test_a_row_whose_keys_are_all_padding_reads_nothing():
    part = layer(Shortened(Softmax(Full(), lse=False), MeanPooled(2)))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 1:] = False
    y = part(X, None, Context.of_sequence(X, mask)).y
    alone = part(X[:1, :1], None, Context.of_sequence(X[:1, :1])).y
    assert y.isfinite().all() and torch.allclose(y[0, 0], alone[0, 0], atol=1e-13)


def test_a_source_is_shortened_once_and_kept():
    part = Attention(QKV(8, 2), Shortened(Softmax(Full()), MeanPooled(4)), cross=True)
    source, source_pos = torch.randn(2, 6, 8), torch.arange(6).expand(2, 6)
    ctx = Context(POS, source=source, source_pos=source_pos)
    y = part(X, None, ctx).y
    queries, keys = part.projection(X, POS, source, source_pos)
    means = [torch.stack([x[:, :, :4].mean(2), x[:, :, 4:].mean(2)], 2) for x in (keys.k, keys.v)]
    expected = attend(queries.q, *means, q_pos=POS[:, None], k_pos=torch.tensor([[[3, 7]]] * 2)).y
    assert torch.allclose(y, part.aggregation(expected, POS), atol=1e-13)
    first = part(X[:, :4], part.start(2, 9), Context(POS[:, :4], source=source, source_pos=source_pos))
    assert first.state.k.shape[2] == 2
    rest = part(X[:, 4:], first.state, Context(POS[:, 4:])).y
    assert torch.allclose(torch.cat([first.y, rest], 1), y, atol=1e-13)
    with pytest.raises(ValueError, match="cross-attention got no source; give ctx=Context"):
        part(X, None, Context(POS))


@pytest.mark.parametrize("shorten", [lambda: MeanPooled(3), lambda: Linformer(9, 2), lambda: ConvShortener(2, 4)])
def test_columns_and_their_order_say_nothing(shorten):
    """Keys are taken by their positions: columns in any order, padding anywhere, other rows beside it."""
    part = layer(Shortened(Softmax(Full()), shorten()))
    alone = part(X[:1, :6]).y
    columns = torch.tensor([8, 3, 0, 5, 1, 4, 2, 7, 6])
    pos = torch.where(columns < 6, columns, -1)[None]
    mixed = part(torch.cat([X[:1, columns], X[1:]]), None, Context(torch.cat([pos, POS[1:]]))).y
    for column, place in enumerate(pos[0].tolist()):
        if place >= 0:
            assert torch.allclose(mixed[0, column], alone[0, place], atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("length", [1, 4, 8, 9])
def test_stairs_read_what_a_mask_reads(size, null, length):
    """A row without padding is folded under a plain causal read; a context that promises less reads by a mask."""
    part = Shortened(Softmax(Causal()), ConvShortener(size, 4, heads=1), NullKey(1, 4) if null else None)
    if null:
        torch.nn.init.normal_(part.null.k)
        torch.nn.init.normal_(part.null.v)
    x, pos = X[:, :length].clone().requires_grad_(), POS[:, :length]
    projection, reads = layer(Softmax(Full()), key_heads=1).projection, []
    for promises in ({"run": True, "full": True}, {}):
        ctx = Context(pos, **promises)
        read = part(*projection.queries_and_keys(x, pos), None, ctx).y
        is_read = read.lse > -torch.inf
        weights = [x, *part.parameters(), *projection.parameters()]
        total = read.y.sin().sum() + read.lse[is_read].cos().sum()
        reads.append([read.y, read.lse, *torch.autograd.grad(total, weights, allow_unused=True)])
    assert bool(is_read[:, :, size - 1 :].all()) and bool(is_read.all()) == (null or size == 1)
    for ours, theirs in zip(*reads, strict=True):
        ours, theirs = (torch.zeros(()) if z is None else z for z in (ours, theirs))
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_no_mask_of_pairs_is_made_where_none_is_wanted(monkeypatch):
    monkeypatch.setattr(pieces, "PLAN", 0.0)  # rows of a few tokens are read under a mask, which is made sooner
    part, x = layer(Shortened(Softmax(Causal(), lse=False), MeanPooled(3))), torch.randn(2, 1500, 8)
    whole = part(x, None, Context(torch.arange(1500).expand(2, -1))).y
    for module in (core_scores, kernel):
        monkeypatch.setattr(module, "mask", pytest.fail)
    assert torch.allclose(part(x).y, whole, atol=1e-13)


class Largest(TorchDispatchMode):
    """The most numbers that any tensor has which is made while this lasts."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


def made_and_multiplied(mechanism, length):
    part, x = layer(mechanism), torch.randn(1, length, 8, requires_grad=True)
    with Largest() as largest, FlopCounterMode(display=False) as counted:
        part(x).y.sum().backward()
    return largest.numbers, counted.get_total_flops()


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_linformers_cost_is_linear_in_the_row_with_gradients(impl):
    """Twice the row, twice the largest tensor; as many multiplications more for as many more tokens, whoever reads."""
    costs = [
        made_and_multiplied(Shortened(Softmax(Full(), lse=False, impl=impl), Linformer(length, 4)), length)
        for length in (128, 256, 384)
    ]
    (small, few), (large, large_cost), (_, most) = costs
    assert large == 2 * small and large < 256 * 32 and most - large_cost == large_cost - few > 0


def test_a_row_whose_groups_a_state_keeps_is_not_mixed_before_it_is_projected(monkeypatch):
    monkeypatch.setattr(MeanPooled, "mix_before_projection", pytest.fail)
    part = layer(Shortened(Softmax(Causal()), MeanPooled(3)))
    state = part.start(len(X), 20)
    assert torch.allclose(part(X).y, part(X, state, Context(POS)).y)


def test_compressed_memory_is_read_without_a_matrix_of_pairs_and_for_a_third_of_the_products():
    length, size = 240, 3
    short = Shortened(Softmax(Causal(), lse=False), ConvShortener(size, 4))
    assert made_and_multiplied(short, length)[0] < length * length // 4
    short = Shortened(Softmax(Causal(), impl="reference"), MeanPooled(size))
    dense = (made_and_multiplied(mechanism, length)[1] for mechanism in (short, Softmax(Causal(), impl="reference")))
    projections = made_and_multiplied(Softmax(Causal(), lse=False), length)[1]  # whose kernel is not counted
    ours, theirs = (flops - projections for flops in dense)
    assert ours == pytest.approx(theirs / size)


@pytest.mark.parametrize(
    "shorten", [MeanPooled(3), MaxPooled(3), ConvShortener(3, 4), Linformer(9, 4), Linformer(9, 4, heads=2)]
)
def test_fused_kernels_can_take_what_it_makes(shorten):
    _, keys = layer(Softmax(Full())).projection.queries_and_keys(X, POS)
    short = shorten(keys)
    assert short.k.stride(3) == short.v.stride(3) == 1


def test_it_keeps_a_key_for_each_group_and_those_of_the_last():
    part = layer(Shortened(Softmax(Causal()), ConvShortener(3, 4, heads=2), NullKey(2, 4)))
    state = part.start(2, 9)
    assert state.short.k.shape[2] == 4 and state.rest.k.shape[2] == 2
    for t in range(8):
        out = part(X[:, t : t + 1], state)
        assert torch.allclose(out.y, part(X[:, : t + 1]).y[:, -1:], atol=1e-13)
        state = out.state
        assert state.short.pos[0, state.short.pos[0] >= 0].tolist() == list(range(2, t + 1, 3))
        assert state.rest.pos[0, state.rest.pos[0] >= 0].tolist() == list(range(t + 1))[(t + 1) // 3 * 3 :]


def test_groups_counted_from_the_last_token_move_with_it():
    """The published package's: it reads nothing that is to come, but which keys there are depends on the length."""
    part = layer(Shortened(Softmax(Causal()), MeanPooled(2, align="last")))
    shifted = X.clone()
    shifted[:, 5:] += 1
    assert torch.allclose(part(shifted).y[:, :5], part(X).y[:, :5], atol=1e-13)
    assert not torch.allclose(part(X[:, :8]).y[:, :5], part(X).y[:, :5], atol=1e-3)
    with pytest.raises(NoState, match="groups that are counted from the first token"):
        part.start(2, 9)


def test_what_it_cannot_do_is_refused_with_advice():
    for part in (
        layer(Shortened(Softmax(Full()), Linformer(9, 2))),
        layer(Shortened(LinearAttention(ELU()), MeanPooled(2))),
    ):
        with pytest.raises(
            NoState, match=r"cannot be decoded with a cache here, because [^.]*\. Use .*generate\(..., recompute=True\)"
        ):
            part.start(2, 9)
    with pytest.raises(NoState, match=r"reads up to inf positions ahead.*; use Causal\(\) & pattern"):
        layer(Shortened(Softmax(Full()), MeanPooled(3))).start(2, 9)
    part = Shortened(Softmax(Causal()), MeanPooled(3), NullKey(2, 4))
    for limits in ({"only": Causal()}, {"also": Band(1)}):
        with pytest.raises(ValueError, match="ctx.only and ctx.also limit single tokens"):
            layer(part)(X, None, Context(POS, **limits))
    queries, keys = layer(part).projection.queries_and_keys(X, POS)
    by_head = keys._replace(pos=POS[:, None].expand(2, 2, 9))
    with pytest.raises(ValueError, match=r"positions by head \[2, 2, 9\]"):
        part(queries, by_head, None, Context(POS))
    with pytest.raises(ValueError, match=r"NullKey was made for heads and widths \[2, 4\], but got k of \[1, 4\]"):
        layer(part, key_heads=1)(X)


def test_it_wants_and_sends_what_its_mechanism_does():
    inner = Softmax(Causal(), ALiBi(2))
    sizes = layer(inner).sizes
    part = Shortened(inner, MeanPooled(2))
    assert (part.wants, part.sends) == (inner.wants, inner.sends)
    assert part.query_extras(sizes) == inner.query_extras(sizes) and part.key_extras(sizes) == inner.key_extras(sizes)
