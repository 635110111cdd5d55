"""Rotary: complex numbers turned by their position, so that products know only distance."""

import cmath

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.projections.qkv import QKV
from tests.unhooked import refusals, unhooked

POS = torch.tensor([[0, 1, 7, 900], [5, 4, 3, -1]])


def naive(x: Tensor, pos: Tensor, pairs: str, turned: int, base: float) -> Tensor:
    """Pair n is a complex number times exp(i p theta_n), theta_n = base^(-2n/turned)."""
    y = x.clone()
    for b, h, t in torch.cartesian_prod(*map(torch.arange, x.shape[:3])).tolist():
        for n in range(turned // 2):
            real, imaginary = (2 * n, 2 * n + 1) if pairs == "interleaved" else (n, n + turned // 2)
            z = complex(x[b, h, t, real], x[b, h, t, imaginary])
            z *= cmath.exp(1j * int(pos[b, t]) * base ** (-2 * n / turned))
            y[b, h, t, real], y[b, h, t, imaginary] = z.real, z.imag
    return y


@pytest.mark.parametrize("pairs", ["interleaved", "half"])
@pytest.mark.parametrize("turned", [8, 4, 2])
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_equals_complex_multiplication(pairs: str, turned: int, base: float, float64: None) -> None:
    x = torch.randn(2, 3, 4, 8)
    ours = Rotary(8, base=base, pairs=pairs, turned=turned)(x, POS)
    assert torch.allclose(ours, naive(x, POS, pairs, turned, base), atol=1e-12)


@pytest.mark.parametrize("pairs", ["interleaved", "half"])
def test_products_know_only_the_distance(pairs: str, float64: None) -> None:
    q, k = torch.randn(2, 1, 1, 6, 8)
    rotary, pos = Rotary(8, pairs=pairs), torch.arange(6)[None]
    near, far = (rotary(q, p) @ rotary(k, p).mT for p in (pos, pos + 1000))
    assert torch.allclose(near, far, atol=1e-11)
    assert not torch.allclose(near, rotary(q, pos) @ rotary(k, pos + 1).mT)


def test_a_layer_turns_queries_and_keys_but_not_values(float64: None) -> None:
    """So a shift of all positions changes nothing, and what a lone token reads is its plain value."""
    layer = Attention(QKV(16, 2, rotation=Rotary(8)), Softmax(Causal()))
    x, pos = torch.randn(2, 9, 16), torch.arange(9).expand(2, 9)
    near, far = (layer(x, None, Context(p, run=True)).y for p in (pos, pos + 1000))
    assert torch.allclose(near, far, atol=1e-11)
    queries, keys = layer.projection(x, pos, x, pos + 3)
    for heads, name, shift in ((queries.q, "q", 0), (keys.k, "k", 3), (keys.v, "v", None)):
        plain = F.linear(x, *layer.projection.matrix(name)).unflatten(-1, (2, 8)).transpose(1, 2)
        assert torch.allclose(heads, plain if shift is None else Rotary(8)(plain, pos + shift), atol=1e-14)


def test_far_positions_stay_apart_in_bfloat16() -> None:
    x = torch.ones(1, 1, 2, 8, dtype=torch.bfloat16)
    y = Rotary(8)(x, torch.tensor([[4096, 4097]]))
    exact = naive(x.double(), torch.tensor([[4096, 4097]]), "interleaved", 8, 10000.0)
    assert y.dtype == torch.bfloat16 and (y.double() - exact).abs().max() < 1e-2


@pytest.mark.parametrize("turned", [3, 10])
def test_refuses_what_does_not_pair_up(turned: int) -> None:
    with pytest.raises(ValueError, match=f"got {turned} dimensions, expected an even number, at most head_dim=8"):
        Rotary(8, turned=turned)


def refusal_messages() -> list[str]:
    wrong = [{"pairs": "halves"}, {"base": 0.0}, {"turned": -2}, {"base": "ten"}]
    return refusals([*(lambda keywords=keywords: Rotary(8, **keywords) for keywords in wrong), lambda: Rotary(0)])


def test_an_option_that_is_none_is_refused_also_without_checked_annotations() -> None:
    starts = ["pairs='halves' is not known", "base=0.0", "turned=-2", "base='ten'", "head_dim=0"]
    for text, start in zip(unhooked(f"{__name__}:{refusal_messages.__name__}"), starts, strict=True):
        assert text.startswith(f"ValueError: {start}")
