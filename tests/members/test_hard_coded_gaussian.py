"""Hard-coded Gaussian attention: the lowest attention by hand, another deviation, offsets, and what is read across."""

import math

import pytest
import torch

import kinformer as kf
from kinformer.core.patterns.causal import Causal
from kinformer.nn.attention import Attention
from kinformer.nn.biases.hard_coded_gaussian import HardCodedGaussian
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.unnormalised import Unnormalised
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.value_projection import ValueProjection
from tests.members.probes import LENGTH, Heads, check_lowest
from tests.members.test_attention_forms import TINY, attentions

pytestmark = pytest.mark.usefixtures("float64")


def by_hand(heads: Heads, h: int) -> torch.Tensor:
    """Values are weighed by the density at j of a normal distribution about i + o_h, o in turn -1, 0, 1."""
    y = torch.zeros(LENGTH, heads.v.shape[2])
    for i, j in ((i, j) for i in range(LENGTH) for j in range(LENGTH)):
        density = math.exp(-((j - (i + (-1, 0, 1)[h % 3])) ** 2) / 2) / math.sqrt(2 * math.pi)
        y[i] += density * heads.v[j, h]
    return y


def test_a_head_reads_around_a_fixed_place_whatever_stands_there() -> None:
    check_lowest(kf.hard_coded_gaussian(**{**TINY, "heads": 4}, form="encoder"), by_hand)


@pytest.mark.parametrize("fault", [{"sigma": 1.1}, {"weights": "softmax"}, {"offsets": (0, 1, -1)}])
def test_another_deviation_sum_or_order_of_offsets_is_noticed(fault: dict) -> None:
    with pytest.raises(AssertionError):
        check_lowest(kf.hard_coded_gaussian(**{**TINY, "heads": 4}, form="encoder", **fault), by_hand)


def offsets(layer: Attention) -> tuple[float, ...]:
    assert isinstance(layer.mechanism.bias, HardCodedGaussian)
    return layer.mechanism.bias.offsets


def test_hard_coded_heads_take_offsets_in_turn_and_own_values_alone() -> None:
    model = kf.hard_coded_gaussian(**{**TINY, "heads": 4}, sigma=0.5)
    encoder, decoder = attentions(model.encoder), attentions(model.decoder)
    assert {offsets(layer) for layer in encoder} == {(-1, 0, 1, -1)}
    assert {offsets(layer) for layer in decoder} == {(-1, 0, -1, 0)}
    for layer in (*encoder, *decoder):
        assert type(layer.projection) is ValueProjection and type(layer.mechanism) is Unnormalised
        assert layer.mechanism.bias.sigma == (0.5,) * 4
    (layer, *_) = attentions(kf.hard_coded_gaussian(**TINY, offsets=(3,), weights="softmax", pattern="Band(4)"))
    assert offsets(layer) == (3, 3) and type(layer.mechanism) is Softmax and layer.mechanism.pattern == Band(4)
    (layer, *_) = attentions(kf.hard_coded_gaussian(**TINY, pattern="Band(4)", form="decoder"))
    assert layer.mechanism.pattern == Causal() & Band(4)


def test_what_is_read_across_is_learned_by_all_by_one_head_or_by_none() -> None:
    learned, last, coded = (
        attentions(kf.hard_coded_gaussian(**TINY, across=across), cross=True)
        for across in ("learned", "last", "hard_coded")
    )
    assert [layer.sizes.heads for layer in learned] == [2, 2] and all(
        type(layer.projection) is QKV for layer in learned
    )
    assert [layer.sizes.heads for layer in last] == [1] and type(last[0].projection) is QKV
    assert last[0].sizes.v_dim == 16 and attentions(kf.hard_coded_gaussian(**TINY, head_dim=5))[0].sizes.v_dim == 5
    assert len(coded) == 2 and all(type(layer.projection) is ValueProjection for layer in coded)
    (layer, *_) = attentions(kf.hard_coded_gaussian(**TINY, across="hard_coded", ratio=1.5), cross=True)
    assert layer.mechanism.bias.ratio == 1.5
    within = attentions(kf.hard_coded_gaussian(**TINY, across="hard_coded", ratio=1.5), cross=False)
    assert within and all(layer.mechanism.bias.ratio == 1.0 for layer in within)  # a row is as long as itself
    model = kf.hard_coded_gaussian(**TINY, across="last")
    (block, top) = model.decoder.layers
    assert [type(layer).__name__ for layer in block.layers] == ["Attention", "MLP"]
    assert [type(layer).__name__ for layer in top.layers] == ["Attention", "Attention", "MLP"]
