"""LayerNorm and RMSNorm against their equations, on features that a forgotten eps or shift would betray."""

import torch

from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.norms.rms import RMSNorm
from tests.unhooked import refusals, unhooked


def test_layer_norm_equals_its_equation(float64: None) -> None:
    part, x = LayerNorm(6, eps=0.1), 3 + 2 * torch.randn(2, 5, 6)
    with torch.no_grad():
        part.weight.normal_()
        part.bias.normal_()
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 0.1).sqrt() * part.weight + part.bias
    assert torch.allclose(part(x), expected, atol=1e-13)
    assert LayerNorm(6).eps == 1e-5 and LayerNorm(6, bias=False).bias is None


def test_rms_norm_equals_its_equation(float64: None) -> None:
    part, x = RMSNorm(6, eps=0.1), 3 + 2 * torch.randn(2, 5, 6)
    with torch.no_grad():
        part.weight.normal_()
    expected = x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt() * part.weight
    assert torch.allclose(part(x), expected, atol=1e-13)
    assert RMSNorm(6).eps == 1e-6


def test_only_layer_norm_takes_away_the_mean() -> None:
    x = torch.randn(2, 5, 6)
    assert torch.allclose(LayerNorm(6)(x + 7), LayerNorm(6)(x), atol=1e-5)
    assert not torch.allclose(RMSNorm(6)(x + 7), RMSNorm(6)(x), atol=1e-1)


def refusal_messages() -> list[str]:
    return refusals(
        [lambda: LayerNorm(0), lambda: LayerNorm(4, eps=-1.0), lambda: RMSNorm(2.0), lambda: RMSNorm(4, eps="a")]
    )


def test_refuses_sizes_that_are_none() -> None:
    for text, start in zip(
        unhooked(f"{__name__}:{refusal_messages.__name__}"), ("d=0", "eps=-1.0", "d=2.0", "eps='a'"), strict=True
    ):
        assert text.startswith(f"ValueError: {start}: give a")
