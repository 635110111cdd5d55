"""Guided attention: the loss of its guided heads by hand, another pattern, and how layers share the guides."""

from itertools import cycle
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kinformer as kf
from kinformer.members.guided_attention import GUIDES
from kinformer.nn.attention import Attention
from tests.members.probes import softmax

pytestmark = pytest.mark.usefixtures("float64")

NAMES = ("next", "previous", "first", "delimiter", "period")
DELIMITER, PERIOD, LENGTH = 3, 5, 10


def pattern_of(name: str, tokens: list[int]) -> torch.Tensor:
    """P: each line even over the keys that a guided head should look at; a line without such a key is all zeros."""
    marks = {"delimiter": DELIMITER, "period": PERIOD}
    p = torch.zeros(LENGTH, LENGTH)
    for i in range(LENGTH):
        keys = {"next": [i + 1], "previous": [i - 1], "first": [0]}.get(name)
        keys = [j for j, token in enumerate(tokens) if token == marks[name]] if keys is None else keys
        keys = [j for j in keys if 0 <= j < LENGTH]
        p[i, keys] = 1 / len(keys) if keys else 0.0
    return p


def check(model: kf.MLM, alpha: float = 1.0) -> None:
    """loss = nll + alpha (mean over tokens of sum over layers and guided heads of |A - P|^2), where P has a key."""
    tokens, inputs = torch.randint(0, 11, (2, LENGTH)), []
    read = model.hide(tokens, fixed=True)[0]
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    for layer in layers:
        layer.register_forward_hook(lambda _layer, arguments, _out: inputs.append(arguments[0]))
    loss = model.train()(tokens, progress=0.0)
    total, guides = 0.0, cycle(NAMES)
    for layer, x in zip(layers, inputs, strict=True):
        q, k = (F.linear(x, *layer.projection.matrix(name)).unflatten(-1, (4, 3)).transpose(1, 2) for name in "qk")
        a = softmax(q @ k.mT / 3**0.5)
        for h, name in zip(range(2), guides, strict=False):
            for row in range(2):
                p = pattern_of(name, read[row].tolist())
                total += (a[row, h] - p)[p.any(1)].square().sum().item() / (2 * LENGTH)
    assert loss.total.item() == pytest.approx(loss.parts["nll"].item() + alpha * total, abs=1e-10)


SMALL: dict[str, Any] = {
    "d": 12,
    "depth": 3,
    "heads": 4,
    "guides": NAMES,
    "delimiter": DELIMITER,
    "period": PERIOD,
    "length": LENGTH,
    "vocab": 11,
}


def test_guided_heads_pay_for_the_distance_from_their_patterns() -> None:
    """Two heads of each of three layers are guided: by next and previous, first and delimiter, period and next."""
    check(kf.guided_attention(**SMALL))
    check(kf.guided_attention(**SMALL, alpha=2.0), 2.0)


@pytest.mark.parametrize("fault", [{"over": "mean"}, {"alpha": 1.1}, {"guides": NAMES[::-1]}, {"share": 0.75}])
def test_another_sum_weight_guide_or_share_is_noticed(fault: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check(kf.guided_attention(**{**SMALL, **fault}))


def test_layers_share_the_guides_between_them() -> None:
    model = kf.guided_attention(d=12, depth=2, heads=4, share=0.5)
    layers = [block.layers[0].mechanism.regularisers[0].guides for block in model.body.layers]
    expected = ("next", "previous"), ("first", "delimiter")
    assert layers == [(*(GUIDES[name] for name in names), None, None) for names in expected]
    assert not kf.guided_attention(d=12, depth=1, heads=4, share=0.0).penalties
