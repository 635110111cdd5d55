"""Retrieval against memorizing-transformers-pytorch: one softmax over local keys and the k best of a memory."""

import pytest
import torch
from torch import nn

from kinformer.attention import Attention
from kinformer.core.layer import Context, Out
from kinformer.core.state import KV
from kinformer.mechanisms.retrieval import Retrieval
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


def made(golden: Golden, segment: int) -> Attention:
    sizes, tensors = golden.hyperparameters, golden.tensors
    mechanism = Retrieval(sizes["heads"], segment, sizes["N"], sizes["k"], combine="joint", eps=1e-12)
    if "log_scale" in tensors:
        mechanism.scale.data.copy_(tensors["log_scale"].flatten().exp())
    width, key_heads = sizes["d_head"], tensors["W_k"].shape[1] // sizes["d_head"]
    layer = Attention(sizes["d"], sizes["heads"], mechanism, head_dim=width, key_heads=key_heads)
    for name, linear in [*((name, getattr(layer.projection, name)) for name in "qkv"), ("o", layer.aggregation.out)]:
        fill(linear, golden, name)
    return layer


def fill(linear: nn.Linear, golden: Golden, name: str) -> None:
    """Weights are stored for y = x W + b; an absent b is none."""
    linear.weight.data.copy_(golden.tensors[f"W_{name}"].T)
    linear.bias.data.copy_(golden.tensors.get(f"b_{name}", torch.zeros_like(linear.bias)))


def run(golden: Golden) -> Out:
    """The memory stands right before the segment that x is in."""
    x, k, v = (golden.tensors[name] for name in ("x", "mem_k", "mem_v"))
    batch, length, kept = len(x), x.shape[1], k.shape[1]
    segment = max(length, kept) + 1
    at = torch.arange(segment - kept, segment).expand(batch, -1)
    memory = KV(by_head(k), by_head(v), at, torch.full((batch,), segment))
    pos = torch.arange(segment, segment + length).expand(batch, -1)
    return made(golden, segment)(x, memory, Context(pos, run=True))


def by_head(x: torch.Tensor) -> torch.Tensor:
    return x[:, None] if x.dim() == 3 else x


@goldens("memorizing_transformer_attention")
def test_output(golden: Golden) -> None:
    close(run(golden).y, golden.tensors["y"])


@goldens("memorizing_transformer_attention")
def test_what_is_remembered(golden: Golden) -> None:
    length = golden.tensors["x"].shape[1]
    state = run(golden).state
    for name in "kv":
        wanted = by_head(golden.tensors[f"added_{name}"])
        close(getattr(state, name)[:, :, -length:], wanted)
        assert not getattr(state, name).requires_grad
