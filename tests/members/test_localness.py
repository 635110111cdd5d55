"""Localness: the lowest attention with its predicted window by hand, another window, and where windows stand."""

import pytest
import torch
from torch import nn

import kinformer as kf
from kinformer.core.bias import Bias, Plus
from kinformer.nn.biases.localness import FixedLocalness, LayerLocalness, Localness, QueryLocalness
from tests.members.probes import LENGTH, Heads, check_lowest, softmax
from tests.members.test_attention_forms import TINY, attentions

pytestmark = pytest.mark.usefixtures("float64")


def biases(model: nn.Module) -> list[Bias | None]:
    return [layer.mechanism.bias for layer in attentions(model)]


def by_hand(heads: Heads, h: int) -> torch.Tensor:
    """G_ij = -(j - P_i)^2 / (2 sigma_i^2) is added to q.k / sqrt(K), sigma_i = D_i / 2.

    P_i = I sigmoid(U_p tanh(W_p q_i)) and D_i = I sigmoid(U_d tanh(W_p q_i)), I being the length of the row.
    """
    bias, q, lines = heads.layer.mechanism.bias, heads.q[:, h], []
    for i in range(LENGTH):
        hidden = torch.tanh(q[i] @ bias.inner[h])
        place, width = (LENGTH / (1 + (-hidden @ u[h]).exp()) for u in (bias.centre, bias.window))
        away = torch.arange(LENGTH) - place
        lines.append(heads.k[:, h] @ q[i] / 8**0.5 - away.square() / (2 * (width / 2) ** 2))
    return softmax(torch.stack(lines)) @ heads.v[:, h]


def test_each_query_predicts_where_it_looks_and_how_far_around() -> None:
    check_lowest(kf.localness(**TINY), by_hand)


def test_the_window_of_a_layer_is_noticed() -> None:
    """Its width is predicted from the mean of the keys in place of the query."""
    with pytest.raises(AssertionError):
        check_lowest(kf.localness(**TINY, window="layer"), by_hand)


def test_localness_stands_in_the_lower_layers_of_the_encoder() -> None:
    def lower(**keywords: object) -> list[bool]:
        return [isinstance(bias, Localness) for bias in biases(kf.localness(**{**TINY, "depth": 4, **keywords}))]

    assert lower() == [True, True, True, False] and lower(depth=2) == [True, True]
    assert lower(local=1) == [True, False, False, False] and not any(lower(local=0)) and all(lower(local=4))
    assert lower(form="decoder", local=1) == [True, False, False, False]
    assert lower(form="encoder_decoder", local=2) == [True, True, False, False, *[False] * 4]


def test_localness_has_three_windows() -> None:
    kinds = {"query": QueryLocalness, "layer": LayerLocalness, "fixed": FixedLocalness}
    for window, kind in kinds.items():
        (bias, *_) = biases(kf.localness(**TINY, window=window, head_dim=6))
        assert type(bias) is kind and (bias.heads, bias.head_dim) == (2, 6)
    (bias, *_) = biases(kf.localness(**TINY, window="fixed", width=3.0))
    assert isinstance(bias, FixedLocalness) and bias.width == 3.0
    (sums, *_) = biases(kf.localness(**TINY, position="alibi"))
    assert isinstance(sums, Plus) and [type(bias).__name__ for bias in sums.biases] == ["ALiBi", "QueryLocalness"]
