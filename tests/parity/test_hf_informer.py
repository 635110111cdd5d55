"""ProbSparse attention against Hugging Face's on equal weights, where theirs is made to look at every key.

Theirs draws one sample of as many keys as there are for all queries, and takes u by ln(1 + L): so it is asked with
every key once, which is the exact max-mean measure, and at a length at which both logarithms round up alike.
"""

from typing import Any

import pytest
import torch
from transformers.models.informer.modeling_informer import InformerProbSparseAttention

from kinformer.attention import Attention
from kinformer.mechanisms.probsparse import ProbSparse
from kinformer.projections.qkv import QKV
from tests.parity.peers import agree, gradient, put, put_qkv, shaken

D, HEADS, LENGTH = 24, 4, 24


@pytest.fixture(autouse=True)
def every_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def randint(low: int, high: int, size: tuple[int, ...]) -> torch.Tensor:
        assert size == (high - low,)
        return torch.arange(low, high)

    monkeypatch.setattr(torch, "randint", randint)


def both(dtype: torch.dtype, causal: bool) -> tuple[InformerProbSparseAttention, Any]:
    theirs = InformerProbSparseAttention(D, HEADS, is_decoder=causal, sampling_factor=2).to(dtype).eval()
    theirs = shaken(theirs)
    rest: dict[str, Any] = {"rest": "sum"} if causal else {}
    ours: Any = Attention(QKV(D, HEADS), ProbSparse(causal=causal, factor=2, measure="max-mean", **rest)).to(dtype)
    for name in "qkv":
        linear = getattr(theirs, f"{name}_proj")
        put_qkv(ours.projection, name, linear.weight, linear.bias)
    put(ours.aggregation.linear, theirs.out_proj.weight, theirs.out_proj.bias)
    return theirs, ours.eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_and_gradients(dtype: torch.dtype, causal: bool) -> None:
    theirs, ours = both(dtype, causal)
    x = torch.randn(3, LENGTH, D, dtype=dtype)
    future = torch.full((LENGTH, LENGTH), -torch.inf, dtype=dtype).triu(1).expand(3, 1, -1, -1)
    want = theirs(x, attention_mask=future if causal else None)[0]
    got = ours(x).y
    # their sum over the row is kept in float32 whatever comes
    tolerance = 1e-6 if causal and dtype == torch.float64 else None
    agree(got, want, tolerance)
    got.square().sum().backward()
    want.square().sum().backward()
    agree(gradient(ours.projection, "q"), theirs.q_proj.weight.grad, tolerance and 10 * tolerance)
