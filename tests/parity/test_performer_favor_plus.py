"""FAVOR+ against performer-pytorch: features, attention over all keys and causal attention."""

import pytest
import torch
from torch import Tensor

from kinformer.core.feature_map import FeatureMap
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.state import UncastState
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.generalised import GeneralisedKernel
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.mechanisms.state_update import LinearState
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


def favor(golden: Golden) -> FAVOR:
    """Their stabilisers and their eps."""
    map = FAVOR(*golden.tensors["omega"].T.shape, eps=1e-4, stabiliser="sequence")
    map.directions.copy_(golden.tensors["omega"])
    return map


def heads(golden: Golden) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (golden.tensors[name] for name in "qkv")
    return q, k, v, torch.arange(q.shape[2]).expand(len(q), -1)


@goldens("performer_favor_plus")
def test_features(golden: Golden) -> None:
    q, k, _, _ = heads(golden)
    map: FeatureMap = favor(golden)
    close(map(q, True)[0], golden.tensors["phi_q"])
    close(map(k, False)[0], golden.tensors["phi_k"])


@goldens("performer_favor_plus")
def test_relu_features(golden: Golden) -> None:
    omega = golden.tensors["omega"]
    map = GeneralisedKernel(*omega.T.shape, eps=1e-3)
    map.directions.copy_(omega)
    close(map(golden.tensors["q"], True)[0], golden.tensors["phi_relu_q"])


@goldens("performer_favor_plus")
def test_all_keys(golden: Golden) -> None:
    q, k, v, pos = heads(golden)
    read = FullLinearAttention(favor(golden))(Queries(q, pos[:, None]), Keys(k, v, pos[:, None]), None, Context(pos)).y
    close(read.y, golden.tensors["out"])


@goldens("performer_favor_plus")
def test_causal(golden: Golden) -> None:
    """They add 1e-6 to every entry of the sum of features: a state whose z begins there, in the scale of their keys."""
    q, k, v, pos = heads(golden)
    map = favor(golden)
    s = q.new_zeros(*k.shape[:2], map.features(k.shape[3]), v.shape[3] + 1)
    s[..., -1] = 1e-6
    state, ctx = UncastState(LinearState(s, map(k, False)[1][..., 0])), Context(pos, run=True)
    read = LinearAttention(map, piece=7)(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), state, ctx).y
    close(read.y, golden.tensors["out_causal"])
