"""Pooling and PoolingLevels: the equations query by query, a second derivation from strided views, reach and cost."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.document import Document
from kinformer.lab.cost.operator_counts import Tally
from kinformer.members.poolingformer import poolingformer
from kinformer.nn.attention import Attention
from kinformer.nn.depth.pooling_levels import PoolingLevels
from kinformer.nn.mechanisms.pooling import Pooling
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.shorteners.windows import DynamicWindows, MaxWindows, MeanWindows

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K = 2, 2, 17, 4
PADDED = torch.tensor([[-1, -1, *range(12), -1, -1, -1], list(range(T))])
SIZES = [(4, 3, 2), (3, 2, 3), (5, 1, 4), (7, 5, 4), (2, 5, 3), (30, 4, 4), (0, 1, 1)]


def bundles(heads=H, pos=PADDED):
    ctx = Context(pos, run=True)
    keys = Keys(torch.randn(B, H, T, K), torch.randn(B, H, T, K), ctx.by_head)
    return Queries(torch.randn(B, heads, T, K), ctx.by_head), keys, ctx


def pooled(x: Tensor, at: list[int], largest: bool) -> Tensor:
    return x[at].amax(0) if largest else x[at].mean(0)


def loop(q: Tensor, k: Tensor, v: Tensor, sizes: tuple[int, int, int], largest: bool) -> Tensor:
    """Of one head: kernels of the window of query i begin at i - window and every stride from there."""
    window, size, stride = sizes
    outputs = []
    for i in range(len(q)):
        kernels = [range(s, s + size) for s in range(i - window, i + window + 2 - size, stride)]
        windows = [at for at in ([t for t in kernel if 0 <= t < len(q)] for kernel in kernels) if at]
        keys, values = (torch.stack([pooled(x, at, largest) for at in windows]) for x in (k, v))
        outputs.append((q[i] @ keys.T / K**0.5).softmax(0) @ values)
    return torch.stack(outputs)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_query_reads_the_pooled_keys_of_its_own_window(sizes: tuple[int, int, int], largest: bool) -> None:
    window, size, stride = sizes
    mechanism = Pooling(window, (MaxWindows if largest else MeanWindows)(size), stride)
    queries, keys, ctx = bundles(2 * H)
    y = mechanism(queries, keys, None, ctx).y.y
    for b in range(B):
        real = PADDED[b] >= 0
        for h in range(2 * H):
            parts = (queries.q[b, h, real], keys.k[b, h // 2, real], keys.v[b, h // 2, real])
            torch.testing.assert_close(y[b, h, real], loop(*parts, sizes, largest))


@pytest.mark.parametrize("sizes", SIZES[:4])
def test_inside_a_row_it_is_attention_over_a_strided_view(sizes: tuple[int, int, int]) -> None:
    """Kernels as a view of a view of the row, with LDConv's weights: no window, position or pattern is known here."""
    window, size, stride = sizes
    pool = DynamicWindows(size, H, K, K)
    for weight in pool.parameters():
        torch.nn.init.normal_(weight)
    queries, keys, ctx = bundles(pos=torch.arange(T).expand(B, -1))
    y = Pooling(window, pool, stride)(queries, keys, None, ctx).y.y
    inner = range(window, T - window)
    assert inner

    def kernels(x: Tensor, weight: Tensor) -> Tensor:
        each = x.unfold(2, 2 * window + 1, 1).unfold(4, size, stride)  # [B H queries K kernels size]
        middle = each[..., size // 2].transpose(3, 4)  # [B H queries kernels K]
        share = (middle @ weight[:, None]).softmax(-1)
        return (each.transpose(3, 4) * share[..., None, :]).sum(-1)

    k, v = kernels(keys.k, pool.k), kernels(keys.v, pool.v)
    query = queries.q[:, :, window : T - window, None]
    want = ((query @ k.mT) / K**0.5).softmax(-1) @ v
    torch.testing.assert_close(y[:, :, window : T - window], want[..., 0, :])


def levels(shared: bool = False, near: int = 1, far: int = 4) -> PoolingLevels:
    layer = PoolingLevels(8, 2, near, Pooling(far, MeanWindows(3), 2), shared=shared)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return layer.eval()


@pytest.mark.parametrize("shared", [False, True])
def test_the_second_level_reads_what_the_first_gives(shared: bool) -> None:
    layer, x = levels(shared), torch.randn(1, 11, 8)

    def heads(part: Attention, z: Tensor) -> list[Tensor]:
        return [F.linear(z, *part.projection.matrix(name)).view(-1, 2, 4).transpose(0, 1) for name in "qkv"]

    q, k, v = heads(layer.near, x[0])
    spans = [range(max(i - 1, 0), min(i + 2, 11)) for i in range(11)]
    near = [
        torch.stack([(q[h, i] @ k[h, at].T / 2).softmax(0) @ v[h, at] for i, at in enumerate(spans)]) for h in (0, 1)
    ]
    y = torch.cat(near, 1)
    q, k, v = heads(layer.far, y)
    z = torch.cat([loop(q[h], k[h], v[h], (4, 3, 2), False) for h in range(2)], 1)
    torch.testing.assert_close(layer(x).y[0], layer.out.linear(y + z))
    assert (layer.near.projection is layer.far.projection) is shared


def test_two_levels_reach_as_far_as_both_windows_and_no_further() -> None:
    layer, x = levels(near=1, far=4), torch.randn(1, 21, 8, requires_grad=True)
    (flow,) = torch.autograd.grad(layer(x).y[0, 10].sum(), x)
    assert (flow[0].abs().sum(-1) > 0).tolist() == [abs(t - 10) <= 5 for t in range(21)]


@torch.no_grad()
def test_memory_grows_with_the_row_and_not_with_its_square() -> None:
    """Twice the row, at most twice the bytes that are alive at once: nobody makes a mask or scores of all pairs."""
    layer, peaks = levels(near=8, far=32), []
    for length in (1024, 2048):
        x = torch.randn(1, length, 8)
        with Tally() as tally:
            layer(x)
        peaks.append(tally.peak)
    assert peaks[1] < 2.2 * peaks[0]


SMALL = {"d": 8, "heads": 2, "depth": 2, "near": 1, "far": 3, "kernel": 3, "stride": 2, "length": 10, "vocab": 11}


def test_the_member_s_keywords_reach_its_parts() -> None:
    for pool, kind in (("mean", MeanWindows), ("max", MaxWindows), ("dynamic", DynamicWindows)):
        model = poolingformer(**SMALL, pool=pool, shared=pool == "max", dropout=0.1)  # type: ignore[arg-type]
        first, second = (block.layers[0] for block in model.body.layers)  # type: ignore[union-attr, attr-defined]
        assert isinstance(first, PoolingLevels) and isinstance(first.far.mechanism, Pooling)
        assert isinstance(first.far.mechanism.shorten, kind) and first.far.mechanism is not second.far.mechanism
        assert (first.far.mechanism.window, first.far.mechanism.stride, first.far.mechanism.shorten.size) == (3, 2, 3)
        assert (first.near.projection is first.far.projection) is (pool == "max")
        assert first.near.mechanism.dropout == first.far.mechanism.mechanism.dropout == 0.1  # type: ignore[union-attr]


def test_what_it_cannot_do_is_refused() -> None:
    layer, x = levels(), torch.randn(1, 5, 8)
    with pytest.raises(ValueError, match=r"ctx.only"):
        layer(x, None, Context.of_sequence(x).replace(only=Document(torch.zeros(1, 5, dtype=torch.long))))
    with pytest.raises(NoState, match="Use a causal layer"):
        layer.start(1, 5)
    with pytest.raises(NoState, match="Use the mechanism without"):
        Attention(QKV(8, 2), Pooling(4, MeanWindows(3))).start(1, 5)
    with pytest.raises(ValueError, match="a kernel of 6 keys does not fit into window=2, which holds 5"):
        Pooling(2, MeanWindows(6))
    with pytest.raises(ValueError, match="stride=0"):
        Pooling(2, MeanWindows(2), 0)
    for name, wrong in (("far", -1), ("kernel", 0), ("kernel", 8)):  # 7 tokens are within far=3
        with pytest.raises(ValueError, match=f"^{name}={wrong}: give"):
            poolingformer(**{**SMALL, name: wrong})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 'median'"):
        poolingformer(**SMALL, pool="median")  # type: ignore[arg-type]
