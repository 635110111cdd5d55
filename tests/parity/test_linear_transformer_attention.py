"""Linear attention against fast-transformers: over all keys, causal, token by token, and the final state.

The source adds 1e-6 to each sum of weights, which the paper does not: hence 1e-4 of the output's scale and no less.
"""

import pytest
import torch
from torch import Tensor

from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context, Out
from kinformer.core.state import UncastState
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")
EPS = 1e-4


def heads(golden: Golden) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (golden.tensors[name].transpose(1, 2) for name in "QKV")
    return q, k, v, torch.arange(q.shape[2]).expand(len(q), -1)


def begun(linear: LinearAttention, q: Tensor, k: Tensor, v: Tensor) -> UncastState:
    sizes = HeadSizes(q.shape[1], k.shape[1], v.shape[1], k.shape[3], v.shape[3])
    return linear.start(StateSpec(len(q), q.shape[2], q.dtype, q.device), sizes)


def read(linear: LinearAttention, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, state: UncastState) -> Out:
    ctx = Context(pos, run=True)
    return linear(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), state, ctx)


def s_and_z(state: UncastState) -> tuple[Tensor, Tensor]:
    """Sums with their scale put back; the last column is z."""
    whole = state.inside.s * state.inside.level.exp()[..., None, None]
    return whole[..., :-1], whole[..., -1]


@goldens("linear_transformer_attention")
def test_all_keys(golden: Golden) -> None:
    q, k, v, pos = heads(golden)
    k_pos = pos.masked_fill(pos >= golden.tensors["lengths"][:, None], -1)
    queries, keys = Queries(q, pos[:, None]), Keys(k, v, k_pos[:, None])
    actual = FullLinearAttention(ELU())(queries, keys, None, Context(pos)).y
    close(actual.y.transpose(1, 2), golden.tensors["out_full"], EPS)


@goldens("linear_transformer_attention")
def test_causal_and_final_state(golden: Golden) -> None:
    q, k, v, pos = heads(golden)
    linear = LinearAttention(ELU(), piece=6)
    out = read(linear, q, k, v, pos, begun(linear, q, k, v))
    close(out.y.y.transpose(1, 2), golden.tensors["out_causal"], EPS)
    s, z = s_and_z(out.state)
    close(s, golden.tensors["S_final"])
    close(z, golden.tensors["z_final"])


@goldens("linear_transformer_attention")
def test_token_by_token(golden: Golden) -> None:
    q, k, v, pos = heads(golden)
    linear, reads = LinearAttention(ELU()), []
    state = begun(linear, q, k, v)
    for t in range(q.shape[2]):
        at = pos[:, t : t + 1]
        out = read(linear, *(x[:, :, t : t + 1] for x in (q, k, v)), at, state)
        state = out.state
        reads.append(out.y.y)
    close(torch.cat(reads, 2).transpose(1, 2), golden.tensors["out_recurrent"], EPS)
    close(s_and_z(state)[0], golden.tensors["S_final"])
