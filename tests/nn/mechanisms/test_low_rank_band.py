"""LowRankBand by loops from its equation, its cache, and no matrix of pairs."""

import pytest
import torch
from torch import Tensor

from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.low_rank_band import Combine, LowRankBand
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from tests.nn.mechanisms.test_highest_scores import Largest

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K, V, RANK, WINDOW = 2, 2, 9, 6, 5, 2, 2
PADDED = torch.tensor([[-1, -1, 0, 1, 2, 3, 4, 5, -1], list(range(T))])


def bundles(groups: int) -> tuple[Queries, Keys, Context]:
    ctx = Context(PADDED, run=True)
    queries = Queries(torch.randn(B, H, T, K), ctx.by_head, {"low_q": torch.randn(B, H, T, RANK)})
    side = {"low_k": torch.randn(B, groups, T, RANK)}
    return queries, Keys(torch.randn(B, groups, T, K), torch.randn(B, groups, T, V), ctx.by_head, side), ctx


def softmaxed(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    weights = [((q @ k) / len(q) ** 0.5).exp() for k in keys]
    total = torch.stack(weights).sum()
    return torch.stack([w * v for w, v in zip(weights, values, strict=True)]).sum(0) / total


@pytest.mark.parametrize("groups", [H, 1])
@pytest.mark.parametrize("combine", ["gate", "sum"])
@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_two_softmaxes_over_one_set_of_values(causal: bool, combine: Combine, groups: int) -> None:
    near, far = (Causal() & Band(WINDOW), Causal()) if causal else (Band(WINDOW), Full())
    mechanism = LowRankBand(H, near, far, RANK, combine=combine)
    if mechanism.gate is not None:
        assert not mechanism.gate.any()  # one half at first
        mechanism.gate.copy_(torch.tensor([0.7, -1.2]))
    queries, keys, ctx = bundles(groups)
    output = mechanism(queries, keys, None, ctx).y
    assert output.lse is None
    for b, h in ((b, h) for b in range(B) for h in range(H)):
        at, g = [t for t in range(T) if PADDED[b, t] >= 0], h * groups // H
        for i in at:
            read = [j for j in at if j <= i or not causal]
            window = [j for j in read if abs(i - j) <= WINDOW]
            v, narrow, low_q = keys.v[b, g], keys.extras["low_k"][b, g], queries.extras["low_q"][b, h, i]
            low = softmaxed(low_q, [narrow[j] for j in read], [v[j] for j in read])
            band = softmaxed(queries.q[b, h, i], [keys.k[b, g, j] for j in window], [v[j] for j in window])
            share = 1 / (1 + (-mechanism.gate[h]).exp()) if mechanism.gate is not None else None
            want = low + band if share is None else share * low + (1 - share) * band
            torch.testing.assert_close(output.y[b, h, i], want)


def test_the_cache_holds_narrow_keys_of_all_and_wide_ones_of_the_window() -> None:
    spec, sizes = StateSpec(B, 40, torch.float32, torch.device("cpu")), HeadSizes(H, H, H, K, V)
    state = LowRankBand(H, Causal() & Band(WINDOW), Causal(), RANK).start(spec, sizes)
    assert state.low.k.shape == (B, H, 40, RANK) and state.low.v.shape == (B, H, 40, V)
    assert state.band.k.shape == (B, H, WINDOW + 1, K)
    with pytest.raises(NoState, match="reads up to 2 positions ahead"):
        LowRankBand(H, Band(WINDOW), Full(), RANK).start(spec, sizes)


@pytest.mark.parametrize("far", [Causal(), Full()], ids=str)
def test_narrow_heads_make_no_matrix_of_pairs(far: Pattern) -> None:
    """Forward and backward; kernels of PyTorch that do without one want queries as wide as values."""
    length, d = 1024, 16
    layer = Attention(QKV(d, 2), LowRankBand(2, Causal() & Band(4), far, 2))
    x = torch.randn(1, length, d, requires_grad=True)
    with Largest() as largest:
        layer(x).y.sum().backward()
    assert largest.size < length**2 / 10


def test_other_heads_than_it_was_made_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^LowRankBand was made for 3 heads, but got 2\. Create it with heads=2$"):
        Attention(QKV(8, 2), LowRankBand(3, Band(1), Full()))
