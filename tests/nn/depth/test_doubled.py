"""Doubled: both halves start as the stream, and their mean goes on."""

import pytest
import torch
from torch import nn

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.nn.attention import Attention
from kinformer.nn.depth.doubled import Doubled
from kinformer.nn.depth.reversible import Coupled, Reversible
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV


def test_the_halves_are_those_of_the_equations(float64: None) -> None:
    """x1 = x2 = x; y1 = x1 + F(x2), y2 = x2 + G(y1); norm((y1 + y2) / 2)."""
    f, g, x = Attention(QKV(8, 2), Softmax(Causal())), MLP(8), torch.randn(2, 5, 8, requires_grad=True)
    layer = Doubled(Reversible([Coupled(f, g, norm=lambda d: nn.Identity())]), LayerNorm(8))
    y1 = x + f(x).y
    y2 = x + g(y1).y
    expected = nn.functional.layer_norm((y1 + y2) / 2, [8])
    actual = layer(x).y
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    weight = torch.randn_like(x)
    mine, theirs = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (actual, expected))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


def test_remembering_brings_the_state_up_to_date(float64: None) -> None:
    blocks = [Coupled(Attention(QKV(8, 2), Softmax(Causal())), MLP(8)) for _ in range(2)]
    layer, x = Doubled(Reversible(blocks), LayerNorm(8)).eval(), torch.randn(2, 6, 8)
    ctx = Context(torch.arange(6).expand(2, 6), run=True)
    whole = layer(x, None, ctx).y
    first = layer(x[:, :4], layer.start(2, 6), ctx.columns(0, 4).replace(remember=True))
    rest = layer(x[:, 4:], first.state, ctx.columns(4, 6)).y
    torch.testing.assert_close(rest, whole[:, 4:], rtol=0, atol=1e-12)


def test_an_odd_width_has_no_halves() -> None:
    with pytest.raises(ValueError, match="the layer's d=7 is not a multiple of halves=2; change one of them"):
        Doubled(MLP(7))
