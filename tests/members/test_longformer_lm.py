"""Longformer's language model: windows and gaps by hand and by gradients, another gap, and sizes of windows."""

from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from tests.by_hand import attention_by_hand
from tests.members.probes import receptive_field

pytestmark = pytest.mark.usefixtures("float64")

TINY: dict[str, Any] = {"d": 8, "heads": 2, "vocab": 11}


def test_it_is_the_equation_with_gaps_by_head_and_layer() -> None:
    """j = i - n d, n = 0 .. w - 1: in layer 1 the first head leaves gaps of d = 3, the other none."""
    model: Any = kf.longformer_lm(d=8, depth=2, heads=2, window=(4, 3), top=None, dilation=(1, 3), dilated=1, vocab=11)
    x = torch.randn(12, 8)
    for block, window, gaps in zip(model.body.layers, (4, 3), ((1, 1), (3, 1)), strict=True):
        layer = block.layers[0]
        plain = Attention(layer.projection, Softmax(layer.mechanism.pattern), aggregation=layer.aggregation)
        expected = attention_by_hand(plain, x, lambda h, i, j, w=window, d=gaps: j in range(i, i - w * d[h], -d[h]))
        torch.testing.assert_close(plain(x[None]).y[0], expected)


def field(windows: tuple[int, ...], gaps: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """Tokens that reach token i: through each layer those of i - n d, n = 0 .. w - 1, by any head."""
    reached = torch.eye(12, dtype=torch.bool)
    for window, by_head in zip(windows, gaps, strict=True):
        steps = {n * gap for gap in by_head for n in range(window)}
        layer = torch.tensor([[i - j in steps for j in range(12)] for i in range(12)])
        reached = (layer.long() @ reached.long()) > 0
    return reached


def check(model: kf.LM, windows: tuple[int, ...], gaps: tuple[tuple[int, ...], ...]) -> None:
    torch.testing.assert_close(receptive_field(model, 12), field(windows, gaps))


def test_it_reads_its_window_and_nothing_ahead() -> None:
    check(kf.longformer_lm(**TINY, depth=1, window=4), (4,), ((1, 1),))


def test_windows_and_gaps_of_all_layers_add_up() -> None:
    model = kf.longformer_lm(**TINY, depth=2, window=(2, 3), top=None, dilation=(1, 3), dilated=1)
    check(model, (2, 3), ((1, 1), (3, 1)))


@pytest.mark.parametrize("fault", [{"dilation": (1, 2)}, {"window": (2, 4)}])
def test_another_gap_or_window_is_noticed(fault: dict[str, Any]) -> None:
    keywords = {"depth": 2, "window": (2, 3), "top": None, "dilation": (1, 3), "dilated": 1, **fault}
    with pytest.raises(AssertionError):
        check(kf.longformer_lm(**TINY, **keywords), (2, 3), ((1, 1), (3, 1)))
