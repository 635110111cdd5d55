"""Linear attention against fast-transformers: over all keys, causal, token by token, and the final state.

The source adds 1e-6 to each sum of weights, which the paper does not: hence 1e-4 of the output's scale and no less.
"""

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.maps.elu import ELU
from kinformer.mechanisms.linear import FullLinear, Linear
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")
EPS = 1e-4


def heads(golden: Golden) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (golden.tensors[name].transpose(1, 2) for name in "QKV")
    return q, k, v, torch.arange(q.shape[2]).expand(len(q), -1)


@goldens("linear_transformer_attention")
def test_all_keys(golden: Golden) -> None:
    q, k, v, pos = heads(golden)
    k_pos = pos.masked_fill(pos >= golden.tensors["lengths"][:, None], -1)
    read = FullLinear(ELU())(q, k, v, k_pos, None, Context(pos), {}).y
    close(read.y.transpose(1, 2), golden.tensors["out_full"], EPS)


@goldens("linear_transformer_attention")
def test_causal_and_final_state(golden: Golden) -> None:
    q, k, v, pos = heads(golden)
    linear = Linear(ELU(), piece=6)
    state = linear.start(len(q), q.shape[2], k.shape[1], k.shape[3], v.shape[3])
    out = linear(q, k, v, pos, state, Context(pos, run=True), {})
    close(out.y.y.transpose(1, 2), golden.tensors["out_causal"], EPS)
    close(out.state.s, golden.tensors["S_final"])
    close(out.state.z, golden.tensors["z_final"])


@goldens("linear_transformer_attention")
def test_token_by_token(golden: Golden) -> None:
    q, k, v, pos = heads(golden)
    linear, reads = Linear(ELU()), []
    state = linear.start(len(q), q.shape[2], k.shape[1], k.shape[3], v.shape[3])
    for t in range(q.shape[2]):
        at = pos[:, t : t + 1]
        out = linear(*(x[:, :, t : t + 1] for x in (q, k, v)), at, state, Context(at, run=True), {})
        state = out.state
        reads.append(out.y.y)
    close(torch.cat(reads, 2).transpose(1, 2), golden.tensors["out_recurrent"], EPS)
    close(state.s, golden.tensors["S_final"])
