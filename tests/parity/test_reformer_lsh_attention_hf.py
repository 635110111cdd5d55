"""Reformer's LSH attention against Hugging Face: both chunks are read whole, keys count once for each round."""

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.lsh_published import PublishedLSH
from kinformer.nn.projections.shared_qk import SharedQK
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


def layer(golden: Golden) -> Attention:
    sizes, tensors = golden.hyperparameters, golden.tensors
    heads, k_dim, rounds, half = tensors["R"].shape
    d = tensors["x"].shape[-1]
    # the source adds 1e-6 to the mean square of a key before it divides by its root
    projection = SharedQK(d, heads, head_dim=k_dim, bias=False, eps=1e-6 * k_dim)
    projection.qk.weight.data.copy_(tensors["W_qk"].T)
    projection.v.weight.data.copy_(tensors["W_v"].T)
    pattern = Causal() if sizes["causal"] else Full()
    lsh = PublishedLSH(
        heads, k_dim, 2 * half, sizes["chunk"], rounds, pattern=pattern, scale=1.0, restricted=False, divided=False
    )
    lsh.hash.r.copy_(tensors["R"])
    return Attention(projection, lsh, aggregation=Concat())


@goldens("reformer_lsh_attention_hf")
def test_buckets(golden: Golden) -> None:
    ours = layer(golden)
    x = golden.tensors["x"]
    queries = ours.projection.queries(x, torch.arange(x.shape[1]).expand(len(x), -1))
    assert torch.equal(ours.mechanism.hash(queries.q).transpose(2, 3), golden.tensors["buckets"])


@goldens("reformer_lsh_attention_hf")
def test_output(golden: Golden) -> None:
    x = golden.tensors["x"]
    pos = torch.arange(x.shape[1]).expand(len(x), -1)
    close(layer(golden)(x, None, Context(pos, run=True)).y, golden.tensors["y"])
