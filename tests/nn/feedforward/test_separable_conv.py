"""SeparableConv from its equation, position by position; what it cannot honour is refused."""

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.nn.feedforward.separable_conv import SeparableConv

POS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, -1, 0, 1, 2, 3, -1]])


def naive(layer: SeparableConv, row: Tensor) -> Tensor:
    """The output of one row [T D] without padding."""
    for n, kernel in enumerate(layer.kernels):
        ahead = 0 if layer.causal else kernel // 2
        taps, outputs = layer.depthwise[n].weight[:, 0], []  # [D kernel], the last one furthest ahead
        for t in range(len(row)):
            mixed = torch.zeros(row.shape[1]).double()
            for k in range(kernel):
                at = t + ahead - (kernel - 1) + k
                if 0 <= at < len(row):
                    mixed = mixed + taps[:, k] * row[at]
            outputs.append(layer.pointwise[n].weight @ mixed + layer.pointwise[n].bias)
        row = torch.stack(outputs)
        row = row.relu() if n == 0 else row
    return row


@pytest.mark.parametrize(("causal", "kernels"), [(True, (3, 5)), (True, (2, 1)), (False, (3, 5)), (False, (1, 3))])
@torch.no_grad()
def test_equals_the_equation(causal: bool, kernels: tuple[int, ...]) -> None:
    layer, x = SeparableConv(4, 6, causal=causal, kernels=kernels).double(), torch.randn(2, 7, 4).double()
    y = layer(x, None, Context(POS, run=True)).y
    for b in range(2):
        real = POS[b] >= 0
        assert torch.allclose(y[b, real], naive(layer, x[b, real]), atol=1e-13)


def test_what_it_cannot_honour_is_refused() -> None:
    layer, x = SeparableConv(4), torch.randn(2, 7, 4)
    for ctx, says in ((Context(POS), "run=True"), (Context(POS, True, only=Causal()), "ctx.only")):
        with pytest.raises(ValueError, match=says):
            layer(x, None, ctx)
    with pytest.raises(NoState, match="Use causal=True"):
        SeparableConv(4, causal=False).start(1, 4)
    for kernels, says in (((3, 4), "must be odd"), ((3,), "expected two sizes")):
        with pytest.raises(ValueError, match=says):
            SeparableConv(4, kernels=kernels, causal=False)
