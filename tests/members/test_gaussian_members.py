"""localness, gaussian_transformer and hard_coded_gaussian: what their keywords build, refuse and cost."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from kinformer.core.bias import Bias, Plus
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.gaussian_transformer import gaussian_transformer
from kinformer.members.hard_coded_gaussian import hard_coded_gaussian
from kinformer.members.localness import localness
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.attention import Attention
from kinformer.nn.biases.gaussian_prior import GaussianPrior
from kinformer.nn.biases.hard_coded_gaussian import HardCodedGaussian
from kinformer.nn.biases.localness import FixedLocalness, LayerLocalness, Localness, QueryLocalness
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.unnormalised import Unnormalised
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.value_projection import ValueProjection

MEMBERS = (localness, gaussian_transformer, hard_coded_gaussian)
TINY = {"d": 16, "depth": 2, "heads": 2, "vocab": 11}


def attentions(model: nn.Module, *, cross: bool = False) -> list[Attention]:
    return [part for part in model.modules() if isinstance(part, Attention) and part.cross is cross]


def biases(model: nn.Module) -> list[Bias | None]:
    return [layer.mechanism.bias for layer in attentions(model)]


@pytest.mark.parametrize("member", MEMBERS)
def test_each_has_three_forms_and_reads_ahead_in_an_encoder_alone(member: Callable) -> None:
    forms = {"encoder": MLM, "decoder": LM, "encoder_decoder": Seq2Seq}
    for form, kind in forms.items():
        model = member(**TINY, form=form)
        assert type(model) is kind
        patterns = [layer.mechanism.pattern for layer in attentions(model)]
        assert patterns == {"encoder": [Full()] * 2, "decoder": [Causal()] * 2}.get(form, [Full()] * 2 + [Causal()] * 2)
        assert len(attentions(model, cross=True)) == 2 * (form == "encoder_decoder")


def test_localness_stands_in_the_lower_layers_of_the_encoder() -> None:
    def lower(**keywords: object) -> list[bool]:
        return [isinstance(bias, Localness) for bias in biases(localness(**{**TINY, "depth": 4, **keywords}))]

    assert lower() == [True, True, True, False] and lower(depth=2) == [True, True]
    assert lower(local=1) == [True, False, False, False] and not any(lower(local=0)) and all(lower(local=4))
    assert lower(form="decoder", local=1) == [True, False, False, False]
    assert lower(form="encoder_decoder", local=2) == [True, True, False, False, *[False] * 4]


def test_localness_has_three_windows() -> None:
    kinds = {"query": QueryLocalness, "layer": LayerLocalness, "fixed": FixedLocalness}
    for window, kind in kinds.items():
        (bias, *_) = biases(localness(**TINY, window=window, head_dim=6))
        assert type(bias) is kind and (bias.heads, bias.head_dim) == (2, 6)
    (bias, *_) = biases(localness(**TINY, window="fixed", width=3.0))
    assert isinstance(bias, FixedLocalness) and bias.width == 3.0
    (both, *_) = biases(localness(**TINY, position="alibi"))
    assert isinstance(both, Plus) and [type(one).__name__ for one in both.biases] == ["ALiBi", "QueryLocalness"]


def test_a_gaussian_transformer_has_a_w_and_b_for_each_layer_or_head() -> None:
    shared, apart = (
        biases(gaussian_transformer(**TINY, by_head=by_head, sigma=2.0, own=0.3)) for by_head in (False, True)
    )
    for found, heads in ((shared, 1), (apart, 2)):
        assert len({id(bias) for bias in found}) == 2
        for bias in found:
            assert isinstance(bias, GaussianPrior)
            torch.testing.assert_close(bias.w, torch.full((heads,), 1 / 8))
            torch.testing.assert_close(bias.b, torch.full((heads,), -0.3))


def offsets(layer: Attention) -> tuple[float, ...]:
    assert isinstance(layer.mechanism.bias, HardCodedGaussian)
    return layer.mechanism.bias.offsets


def test_hard_coded_heads_take_offsets_in_turn_and_own_values_alone() -> None:
    model = hard_coded_gaussian(**{**TINY, "heads": 4}, sigma=0.5)
    encoder, decoder = attentions(model.encoder), attentions(model.decoder)
    assert {offsets(layer) for layer in encoder} == {(-1, 0, 1, -1)}
    assert {offsets(layer) for layer in decoder} == {(-1, 0, -1, 0)}
    for layer in (*encoder, *decoder):
        assert type(layer.projection) is ValueProjection and type(layer.mechanism) is Unnormalised
        assert layer.mechanism.bias.sigma == (0.5,) * 4
    (layer, *_) = attentions(hard_coded_gaussian(**TINY, offsets=(3,), weights="softmax", pattern="Band(4)"))
    assert offsets(layer) == (3, 3) and type(layer.mechanism) is Softmax and layer.mechanism.pattern == Band(4)
    (layer, *_) = attentions(hard_coded_gaussian(**TINY, pattern="Band(4)", form="decoder"))
    assert layer.mechanism.pattern == Causal() & Band(4)


def test_what_is_read_across_is_learned_by_all_by_one_head_or_by_none() -> None:
    learned, last, coded = (
        attentions(hard_coded_gaussian(**TINY, across=across), cross=True)
        for across in ("learned", "last", "hard_coded")
    )
    assert [layer.sizes.heads for layer in learned] == [2, 2] and all(type(x.projection) is QKV for x in learned)
    assert [layer.sizes.heads for layer in last] == [1] and type(last[0].projection) is QKV
    assert last[0].sizes.v_dim == 16 and attentions(hard_coded_gaussian(**TINY, head_dim=5))[0].sizes.v_dim == 5
    assert len(coded) == 2 and all(type(layer.projection) is ValueProjection for layer in coded)
    (layer, *_) = attentions(hard_coded_gaussian(**TINY, across="hard_coded", ratio=1.5), cross=True)
    assert layer.mechanism.bias.ratio == 1.5
    within = attentions(hard_coded_gaussian(**TINY, across="hard_coded", ratio=1.5), cross=False)
    assert within and all(one.mechanism.bias.ratio == 1.0 for one in within)  # a row is as long as itself
    model = hard_coded_gaussian(**TINY, across="last")
    (block, top) = model.decoder.layers
    assert [type(one).__name__ for one in block.layers] == ["Attention", "MLP"]
    assert [type(one).__name__ for one in top.layers] == ["Attention", "Attention", "MLP"]


@pytest.mark.parametrize(
    ("member", "keywords", "says"),
    [
        (localness, {"width": 4.0}, "width=4.0 has no effect with window=query"),
        (localness, {"local": 3}, "local=3: give a whole number from 0 to 2"),
        (localness, {"smoothing": 0.1}, "smoothing=0.1 has no effect with form=encoder; leave it out"),
        (gaussian_transformer, {"sigma": 0.0}, "sigma=0.0: give a number from 0.01"),
        (gaussian_transformer, {"own": -1.0}, "own=-1.0: give a number"),
        (hard_coded_gaussian, {"form": "decoder", "across": "last"}, "across=last has no effect with form=decoder"),
        (hard_coded_gaussian, {"ratio": 2.0}, "ratio=2.0 has no effect with across=learned; leave it out"),
        (hard_coded_gaussian, {"across": "hard_coded", "ratio": 0.0}, "ratio=0.0: give a number"),
        (hard_coded_gaussian, {"offsets": ()}, "the number of offsets=0: give a whole number of at least 1"),
        (hard_coded_gaussian, {"sigma": 0.0}, "sigma=0.0: give a number from 0.01"),
        (hard_coded_gaussian, {"heads": 3}, "d=16 does not split into heads=3"),
        *((member, {"depth": 0}, "depth=0: give a whole number of at least 1") for member in MEMBERS),
    ],
)
def test_what_means_nothing_is_refused(member: Callable, keywords: dict, says: str) -> None:
    with pytest.raises((ValueError, TypeError)) as told:
        member(**{**TINY, **keywords})
    assert "\n" not in str(told.value) and says in str(told.value)


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("form", ["encoder", "decoder", "encoder_decoder"])
def test_the_first_loss_is_that_of_guessing(member: Callable, form: str) -> None:
    torch.manual_seed(0)
    model = member(d=32, depth=2, heads=2, form=form)
    loss = float(model(model.sample(4, 60, 0)).total.detach())
    assert abs(loss / math.log(256) - 1) < 0.1
