"""Decayed: the gated sum of linear attention token by token, and a factor of 1 - g that the loop notices."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.mechanism import Mechanism
from tests.nn.mechanisms.heads import close, random_heads, real_tokens, run

pytestmark = pytest.mark.usefixtures("float64")


def phi(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def check(mechanism: Mechanism, groups: int) -> None:
    """S_t = g_t S_(t-1) + phi(k_t) v_t^T and z_t = g_t z_(t-1) + phi(k_t); y_t = phi(q_t) S_t / phi(q_t).z_t."""
    heads = random_heads(groups=groups, gate=1)
    y = run(mechanism, heads).y.y
    for b, h in ((b, h) for b in range(2) for h in range(2)):
        g, s, z = h * groups // 2, torch.zeros(4, 3), torch.zeros(4)
        for t in real_tokens(b):
            gate = 1 / (1 + (-heads.extras["gate"][b, g, t]).exp())
            key = phi(heads.k[b, g, t])
            s, z = gate * s + torch.outer(key, heads.v[b, g, t]), gate * z + key
            query = phi(heads.q[b, h, t])
            close(y[b, h, t], query @ s / (query @ z))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("piece", [3, 64])
def test_a_token_enters_whole_and_the_past_fades(groups: int, piece: int) -> None:
    check(kf.LinearAttention(kf.ELU(), kf.Decayed(), piece=piece), groups)


def test_a_token_that_enters_by_one_minus_the_gate_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check(kf.LinearAttention(kf.ELU(), kf.GatedUpdate()), 2)
