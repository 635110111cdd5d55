"""CSALR: the lowest attention through pooled tokens by hand, the inverse of A alone, and what it cannot do."""

from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.core.mechanism import NoState
from tests.members.probes import LENGTH, Heads, check_lowest, softmax

pytestmark = pytest.mark.usefixtures("float64")

SMALL: dict[str, Any] = {"d": 16, "heads": 2, "depth": 2, "vocab": 11, "length": 20}
SIZE = 2


def by_hand(heads: Heads, h: int) -> torch.Tensor:
    """softmax(Q K~^T / sqrt(K)) (A + I)^-1 softmax(Q~ K^T / sqrt(K)) V, landmarks by strided means of two tokens."""
    q, k, v = heads.q[:, h], heads.k[:, h], heads.v[:, h]
    q_mean, k_mean = (torch.stack([x[n : n + SIZE].mean(0) for n in range(0, LENGTH, SIZE)]) for x in (q, k))
    f, a, b = (softmax(x @ y.T / 8**0.5) for x, y in ((q, k_mean), (q_mean, k_mean), (q_mean, k)))
    return f @ torch.linalg.inv(a + torch.eye(len(a))) @ b @ v


def test_tokens_read_each_other_through_pooled_ones() -> None:
    check_lowest(kf.csalr(**SMALL, size=SIZE), by_hand)


def test_the_inverse_of_a_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kf.NystromIdentity, "approximate_inverse", lambda self, a: torch.linalg.pinv(a))
    with pytest.raises(AssertionError):
        check_lowest(kf.csalr(**SMALL, size=SIZE), by_hand)


def test_it_halves_the_weights_of_softmax_where_every_token_is_a_landmark() -> None:
    """S (S + I)^-1 S sums to 1/2 along each line, as S sums to 1: values that are all alike come out halved."""
    model = kf.csalr(**SMALL, size=1).eval()
    layer = model.body.layers[0].layers[0]
    layer.projection.qkv.weight.data[-16:] = 0.0
    layer.projection.qkv.bias.data[-16:] = 1.0
    y = layer(torch.randn(1, LENGTH, 16)).y
    torch.testing.assert_close(y, layer.aggregation.linear(torch.full((1, LENGTH, 16), 0.5)))


def test_it_writes_nothing_and_pools_at_least_one_token() -> None:
    with pytest.raises(NoState, match="use "):
        kf.csalr(**SMALL).start(1, 4)
    with pytest.raises(ValueError, match="^size=0: give a whole number of at least 1$"):
        kf.csalr(**SMALL, size=0)
