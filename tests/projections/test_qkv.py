"""QKV: three matrices, heads as column blocks, key heads shared by groups of query heads."""

import math

import pytest
import torch

from kinformer.attention import Attention
from kinformer.core.layer import Context
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.causal import Causal
from kinformer.projections.qkv import QKV

POS = torch.arange(5).expand(2, 5)


def test_heads_are_column_blocks_of_the_matrices(float64: None) -> None:
    part = QKV(6, 4, key_heads=2, head_dim=3)
    x, source = torch.randn(2, 5, 6), torch.randn(2, 7, 6)
    q, k, v = part(x, POS, source, torch.arange(7).expand(2, 7))
    assert (q.shape, k.shape, v.shape) == ((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 3))
    for found, linear, read in ((q, part.q, x), (k, part.k, source), (v, part.v, source)):
        for head in range(found.shape[1]):
            block = slice(3 * head, 3 * head + 3)
            assert torch.allclose(found[:, head], read @ linear.weight[block].T + linear.bias[block], atol=1e-14)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_attention_over_shared_key_heads_equals_a_loop(key_heads: int, float64: None) -> None:
    """Query head h reads key head h // (heads / key_heads): one key head is multi-query attention."""
    layer = Attention(8, 4, Softmax(Causal()), key_heads=key_heads, head_dim=3, out=False)
    x = torch.randn(2, 5, 8)
    q, k, v = layer.projection(x, POS, x, POS)
    y = layer(x, None, Context(POS, run=True)).y
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(5)).tolist():
        group = h // (4 // key_heads)
        weight = torch.stack([torch.exp(q[b, h, i] @ k[b, group, j] / math.sqrt(3)) for j in range(i + 1)])
        assert torch.allclose(y[b, i, 3 * h : 3 * h + 3], weight @ v[b, group, : i + 1] / weight.sum(), atol=1e-12)


def test_sharing_key_heads_is_full_heads_with_equal_matrices(float64: None) -> None:
    grouped, full = (Attention(8, 4, Softmax(Causal()), key_heads=g) for g in (2, 4))
    with torch.no_grad():
        for name, weight in full.named_parameters():
            given = grouped.get_parameter(name)
            same = given.shape == weight.shape
            weight.copy_(given if same else given.unflatten(0, (2, 2)).repeat_interleave(2, 0).flatten(0, 1))
    x = torch.randn(2, 5, 8)
    one, other = (layer(x, None, Context(POS, run=True)).y for layer in (grouped, full))
    assert torch.allclose(one, other, atol=1e-13)


def test_the_cache_holds_key_heads_only() -> None:
    state = Attention(8, 4, Softmax(Causal()), key_heads=1).start(2, 9)
    assert state.k.shape == (2, 1, 9, 2)


def test_refuses_heads_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="d=10 does not split into heads=4"):
        QKV(10, 4)
    with pytest.raises(ValueError, match="heads=4 is not a multiple of key_heads=3"):
        QKV(12, 4, key_heads=3)
    assert QKV(10, 4, head_dim=3, bias=False).q.bias is None
