"""Poolingformer: both levels of the lowest attention by hand, another pool, and how far a layer reads."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kinformer as kf
from kinformer.nn.depth.pooling_levels import PoolingLevels
from tests.members.probes import LENGTH, distances, first_part, receptive_field, softmax

pytestmark = pytest.mark.usefixtures("float64")

NEAR, FAR, KERNEL, STRIDE = 1, 4, 3, 2
SMALL: dict[str, Any] = {
    "d": 8,
    "heads": 2,
    "depth": 1,
    "near": NEAR,
    "far": FAR,
    "kernel": KERNEL,
    "stride": STRIDE,
    "length": 20,
    "vocab": 11,
}


def attended(layer: Any, x: torch.Tensor, keys_of: Any) -> torch.Tensor:
    """Heads side by side: query i reads the means of the groups of tokens `keys_of(i)`."""
    q, k, v = (F.linear(x, *layer.projection.matrix(name)).view(len(x), 2, -1) for name in "qkv")
    rows = []
    for i in range(len(x)):
        keys, values = (torch.stack([part[group].mean(0) for group in keys_of(i)], 1) for part in (k, v))  # [2 n K]
        scores = torch.einsum("hnk,hk->hn", keys, q[i]) / 2
        rows.append(torch.einsum("hn,hnv->hv", softmax(scores), values).flatten())
    return torch.stack(rows)


def window(i: int) -> list[list[int]]:
    return [[j] for j in range(max(i - NEAR, 0), min(i + NEAR + 1, LENGTH))]


def kernels(i: int) -> list[list[int]]:
    """Runs of 3 tokens within i - 4 .. i + 4 that begin 2 apart; at the ends of the row of the tokens that are left."""
    starts = range(i - FAR, i + FAR + 2 - KERNEL, STRIDE)
    groups = [[j for j in range(start, start + KERNEL) if 0 <= j < LENGTH] for start in starts]
    return [group for group in groups if group]


def check(model: kf.MLM) -> None:
    """y by a window of single keys, z of y by pooled keys of a wider window; (y + z) W_o + b_o."""
    layer, x, out = first_part(model, PoolingLevels)
    y = attended(layer.near, x, window)
    z = attended(layer.far, y, kernels)
    torch.testing.assert_close(out, layer.out.linear(y + z))


@pytest.mark.parametrize("shared", [False, True])
def test_the_second_level_reads_pooled_keys_of_what_the_first_one_read(shared: bool) -> None:
    check(kf.poolingformer(**SMALL, pool="mean", shared=shared))


@pytest.mark.parametrize("fault", [{"pool": "max"}, {"stride": 1}, {"far": FAR + 1}])
def test_another_pool_stride_or_window_is_noticed(fault: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check(kf.poolingformer(**{**SMALL, "pool": "mean", **fault}))


@pytest.mark.parametrize("pool", ["mean", "dynamic"])
def test_a_layer_reads_as_far_as_both_windows_together(pool: str) -> None:
    """With a stride that leaves out no token: |i - j| <= near + far."""
    model = kf.poolingformer(**{**SMALL, "pool": pool})
    assert torch.equal(receptive_field(model, 14), distances(14).abs() <= NEAR + FAR)
