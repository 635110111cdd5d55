"""Distilled: half as many tokens by a loop, padding without influence, and Hugging Face's layer on equal weights."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.informer.modeling_informer import InformerConvLayer

from kinformer.core.layer import Context
from kinformer.nn.depth.distilled import Distil, Distilled, _example

pytestmark = pytest.mark.usefixtures("float64")
D = 4


def loop(distil: Distil, x: Tensor) -> Tensor:
    """A row without padding."""
    zero, weight = torch.zeros(D), distil.conv.weight
    row = [zero, *x, zero]
    convolved = [F.elu(sum(weight[:, :, n] @ row[t + n] for n in range(3)) + distil.conv.bias) for t in range(len(x))]
    near = [[convolved[n] for n in (2 * t - 1, 2 * t, 2 * t + 1) if 0 <= n < len(x)] for t in range((len(x) + 1) // 2)]
    return torch.stack([torch.stack(window).amax(0) for window in near])


@pytest.mark.parametrize("length", [1, 2, 7, 8])
@torch.no_grad()
def test_a_row_is_halved_wherever_its_padding_stands(length: int) -> None:
    distil, x = Distil(D), torch.randn(2, length, D)
    for left in (0, 1, 2):
        wide, pos = torch.randn(2, length + 3, D), torch.full((2, length + 3), -1)
        wide[:, left : left + length], pos[:, left : left + length] = x, torch.arange(length)
        y, at = distil(wide, pos)
        for n in range(2):
            torch.testing.assert_close(y[n, at[n] >= 0], loop(distil, x[n]))
        assert at[0].tolist() == [*range((length + 1) // 2), *[-1] * (y.shape[1] - (length + 1) // 2)]
        assert not y[at < 0].any()
    y, at = distil(x, torch.arange(length).expand(2, -1), full=True)
    torch.testing.assert_close(y[1], loop(distil, x[1]))


def test_it_is_hugging_face_s_without_a_norm_and_with_zeros_at_the_ends() -> None:
    theirs: Any = InformerConvLayer(D).double().eval()
    theirs.downConv.padding_mode, theirs.norm.eps = "zeros", 0.0
    distil, x = Distil(D), torch.randn(3, 9, D)
    distil.conv.load_state_dict(theirs.downConv.state_dict())
    torch.testing.assert_close(distil(x, torch.arange(9).expand(3, -1), full=True)[0], theirs(x))


def test_a_row_is_shorter_between_layers_alone() -> None:
    distil = _example().double()
    x = torch.randn(2, 9, 16)
    y, ctx, _ = distil(x, Context.of_sequence(x))
    assert y.shape == (2, 5, 16) and ctx.pos.tolist() == [list(range(5))] * 2
    alike = Distilled(distil.layers, distil=False)
    assert alike(x, Context.of_sequence(x))[0].shape == x.shape
    with pytest.raises(ValueError, match="Distilled needs at least one layer"):
        Distilled([])
