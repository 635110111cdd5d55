"""Random feature attention against the authors' functions: features, causal sums in both forms, cross-attention."""

from typing import Any

import pytest
from torch import Tensor, arange

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")

# The authors scale features by 0.1, add 1e-3 to the norm, and clamp each form's denominator in its own way.
SCALE, EPS = 0.1, 1e-3


def features(golden: Golden, **clamp: Any) -> RandomFourier:
    heads, directions, k_dim = golden.tensors["W"].shape
    map = RandomFourier(heads, k_dim, directions, scale=SCALE, eps=EPS, tau=golden.hyperparameters["tau"], **clamp)
    map.directions.copy_(golden.tensors["W"])
    map.sigma.data.copy_(golden.tensors["sigma"][:, 0])
    return map


def read(mechanism: LinearAttention | FullLinearAttention, golden: Golden) -> Tensor:
    q, k, v = (golden.tensors[name].transpose(1, 2) for name in ("q", "k", "v"))
    pos = arange(q.shape[2]).expand(len(q), -1)
    k_pos = arange(k.shape[2]).expand(len(k), -1)
    queries, keys = (
        Queries(q, pos[:, None]),
        Keys(k, v, k_pos[:, None], own=not isinstance(mechanism, FullLinearAttention)),
    )
    return mechanism(queries, keys, None, Context(pos, run=True)).y.y.transpose(1, 2)


@goldens("random_feature_attention")
def test_features(golden: Golden) -> None:
    phi, _ = features(golden)(golden.tensors["q"].transpose(1, 2), True)
    close(phi.transpose(1, 2), golden.tensors["phi_q"])


@goldens("random_feature_attention")
def test_causal_sums_of_the_kernel(golden: Golden) -> None:
    close(read(LinearAttention(features(golden, floor=1.0)), golden), golden.tensors["out_causal_kernel"])


@goldens("random_feature_attention")
def test_causal_sums_under_a_mask(golden: Golden) -> None:
    map = features(golden, floor=1e-3, clamp="magnitude")
    close(read(LinearAttention(map, piece=7), golden), golden.tensors["out_causal_masked"])


@goldens("random_feature_attention")
def test_cross_attention(golden: Golden) -> None:
    close(
        read(FullLinearAttention(features(golden, floor=1.0, clamp="magnitude")), golden), golden.tensors["out_cross"]
    )
