"""QKV: three matrices in one, heads as column blocks, key heads shared by groups of query heads."""

import math

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.projections.qkv import QKV
from tests.unhooked import refusals, unhooked

POS = torch.arange(5).expand(2, 5)


def test_heads_are_column_blocks_of_the_matrices(float64: None) -> None:
    part = QKV(6, 4, key_heads=2, head_dim=3)
    x, source = torch.randn(2, 5, 6), torch.randn(2, 7, 6)
    queries, keys = part(x, POS, source, torch.arange(7).expand(2, 7))
    assert (queries.q.shape, keys.k.shape, keys.v.shape) == ((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 3))
    for projected, name, read in ((queries.q, "q", x), (keys.k, "k", source), (keys.v, "v", source)):
        weight, bias = part.matrix(name)
        for head in range(projected.shape[1]):
            block = slice(3 * head, 3 * head + 3)
            assert torch.allclose(projected[:, head], read @ weight[block].T + bias[block], atol=1e-14)


SHAPES = [
    {"heads": 4},
    {"heads": 4, "key_heads": 2, "v_dim": 5},
    {"heads": 4, "key_heads": 1, "head_dim": 6, "v_dim": 2, "bias": False},
    {"heads": 1, "v_dim": 3},
    {"heads": 2, "head_dim": 4, "rotation": Rotary(4)},
]


@pytest.mark.parametrize("keywords", SHAPES, ids=range(len(SHAPES)))
def test_one_product_gives_what_two_give(keywords: dict, float64: None) -> None:
    """both == queries + keys, and each of them is its rows of the fused matrix, q, k, v below one another."""
    part, x = QKV(8, **keywords), torch.randn(2, 5, 8)
    queries, keys = part.queries_and_keys(x, POS)
    apart, also = part.queries(x, POS), part.keys(x, POS)
    for first, other in ((queries.q, apart.q), (keys.k, also.k), (keys.v, also.v)):
        assert torch.allclose(first, other, atol=1e-14)
    assert torch.equal(queries.pos, POS[:, None]) and torch.equal(keys.pos, POS[:, None])
    sizes = part.sizes()
    assert queries.q.shape == (2, sizes.heads, 5, sizes.k_dim)
    assert keys.k.shape == (2, sizes.key_heads, 5, sizes.k_dim)
    assert keys.v.shape == (2, sizes.value_heads, 5, sizes.v_dim)
    matrices = [part.matrix(name) for name in ("q", "k", "v")]
    assert torch.equal(torch.cat([weight for weight, _ in matrices]), part.qkv.weight)
    assert all(weight.data_ptr() >= part.qkv.weight.data_ptr() for weight, _ in matrices)
    if part.qkv.bias is None:
        assert all(bias is None for _, bias in matrices)
    else:
        assert torch.equal(torch.cat([bias for _, bias in matrices]), part.qkv.bias)


def test_values_may_be_wider_or_narrower_than_queries(float64: None) -> None:
    """A loop over groups with v_dim != head_dim, aggregated from heads * v_dim."""
    layer = Attention(QKV(8, 4, key_heads=2, head_dim=3, v_dim=5), Softmax(Causal()))
    assert layer.aggregation.linear.in_features == 20
    x = torch.randn(2, 5, 8)
    queries, keys = layer.projection.queries_and_keys(x, POS)
    heads = []
    for h in range(4):
        logits = queries.q[:, h] @ keys.k[:, h // 2].mT / math.sqrt(3)
        heads.append(logits.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1) @ keys.v[:, h // 2])
    linear = layer.aggregation.linear
    expected = torch.cat(heads, -1) @ linear.weight.T + linear.bias
    assert torch.allclose(layer(x).y, expected, atol=1e-13)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_attention_over_shared_key_heads_equals_a_loop(key_heads: int, float64: None) -> None:
    """Query head h reads key head h // (heads / key_heads): one key head is multi-query attention."""
    layer = Attention(QKV(8, 4, key_heads=key_heads, head_dim=3), Softmax(Causal()), aggregation=Concat())
    x = torch.randn(2, 5, 8)
    queries, keys = layer.projection(x, POS, x, POS)
    q, k, v = queries.q, keys.k, keys.v
    y = layer(x, None, Context(POS, run=True)).y
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(5)).tolist():
        group = h // (4 // key_heads)
        weight = torch.stack([torch.exp(q[b, h, i] @ k[b, group, j] / math.sqrt(3)) for j in range(i + 1)])
        assert torch.allclose(y[b, i, 3 * h : 3 * h + 3], weight @ v[b, group, : i + 1] / weight.sum(), atol=1e-12)


def test_sharing_key_heads_is_full_heads_with_equal_matrices(float64: None) -> None:
    grouped, full = (Attention(QKV(8, 4, key_heads=g), Softmax(Causal())) for g in (2, 4))
    full.aggregation.load_state_dict(grouped.aggregation.state_dict())
    with torch.no_grad():
        for name in ("q", "k", "v"):
            for weight, group_weight in zip(full.projection.matrix(name), grouped.projection.matrix(name), strict=True):
                same = group_weight.shape == weight.shape
                weight.copy_(
                    group_weight if same else group_weight.unflatten(0, (2, 2)).repeat_interleave(2, 0).flatten(0, 1)
                )
    x = torch.randn(2, 5, 8)
    first, other = (layer(x, None, Context(POS, run=True)).y for layer in (grouped, full))
    assert torch.allclose(first, other, atol=1e-13)


def test_the_cache_holds_key_heads_only() -> None:
    state = Attention(QKV(8, 4, key_heads=1, v_dim=3), Softmax(Causal())).start(2, 9)
    assert state.k.shape == (2, 1, 9, 2) and state.v.shape == (2, 1, 9, 3)


def test_refuses_heads_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="d=10 is not a multiple of heads=4"):
        QKV(10, 4)
    with pytest.raises(ValueError, match="heads=4 is not a multiple of key_heads=3"):
        QKV(12, 4, key_heads=3)
    with pytest.raises(ValueError, match="name='o' is not known"):
        QKV(12, 4).matrix("o")
    assert QKV(10, 4, head_dim=3, bias=False).qkv.bias is None


def refusal_messages() -> list[str]:
    wrong = [
        {"d": 0, "heads": 1},
        {"d": 8, "heads": 0},
        {"d": 8, "heads": 2, "key_heads": 0},
        {"d": 8, "heads": 2, "head_dim": 0},
        {"d": 8, "heads": 2, "v_dim": -1},
        {"d": 8, "heads": 2, "rotation": Rotary},
        {"d": 8, "heads": 2, "bias": "no"},
    ]
    return refusals([lambda keywords=keywords: QKV(**keywords) for keywords in wrong])


def test_an_argument_that_is_none_is_refused_also_without_checked_annotations() -> None:
    starts = ["d=0", "heads=0", "key_heads=0", "head_dim=0", "v_dim=-1", "rotation is the class Rotary", "bias='no'"]
    for text, start in zip(unhooked(f"{__name__}:{refusal_messages.__name__}"), starts, strict=True):
        assert text.startswith(f"ValueError: {start}")
