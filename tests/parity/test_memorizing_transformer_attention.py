"""Retrieval against memorizing-transformers-pytorch: one softmax over local keys and the k best of a memory."""

import pytest
import torch
from torch import nn

from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Out
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


def make_layer(golden: Golden, segment: int) -> Attention:
    sizes, tensors = golden.hyperparameters, golden.tensors
    mechanism = Retrieval(sizes["heads"], segment, sizes["N"], sizes["k"], combine="joint", eps=1e-12)
    if "log_scale" in tensors:
        mechanism.head_scale.data.copy_(tensors["log_scale"].flatten().exp())
    width, key_heads = sizes["d_head"], tensors["W_k"].shape[1] // sizes["d_head"]
    layer = Attention(QKV(sizes["d"], sizes["heads"], head_dim=width, key_heads=key_heads), mechanism)
    fill(layer.projection.qkv, golden, "qkv")
    fill(layer.aggregation.linear, golden, "o")
    return layer


def fill(linear: nn.Linear, golden: Golden, names: str) -> None:
    """Weights are stored for y = x W + b, one of ours below the other; an absent b is none."""
    weights = [golden.tensors[f"W_{name}"].T for name in names]
    biases = [golden.tensors.get(f"b_{name}", w.new_zeros(len(w))) for name, w in zip(names, weights, strict=True)]
    linear.weight.data.copy_(torch.cat(weights))
    linear.bias.data.copy_(torch.cat(biases))


def run(golden: Golden) -> Out:
    """The memory stands right before the segment that x is in."""
    x, k, v = (golden.tensors[name] for name in ("x", "mem_k", "mem_v"))
    batch, length, memory_length = len(x), x.shape[1], k.shape[1]
    segment = max(length, memory_length) + 1
    at = torch.arange(segment - memory_length, segment).expand(batch, -1)
    memory = KV(by_head(k), by_head(v), at, torch.full((batch,), segment), {}, {}, {})
    pos = torch.arange(segment, segment + length).expand(batch, -1)
    return make_layer(golden, segment)(x, memory, Context(pos, run=True))


def by_head(x: torch.Tensor) -> torch.Tensor:
    return x[:, None] if x.dim() == 3 else x


@goldens("memorizing_transformer_attention")
def test_output(golden: Golden) -> None:
    close(run(golden).y, golden.tensors["y"])


@goldens("memorizing_transformer_attention")
def test_what_is_remembered(golden: Golden) -> None:
    length = golden.tensors["x"].shape[1]
    state = run(golden).state
    order = state.pos.argsort(1)[:, None, -length:, None]
    for name in "kv":
        expected = by_head(golden.tensors[f"added_{name}"])
        close(getattr(state, name).take_along_dim(order, 2), expected)
