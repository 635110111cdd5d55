"""Members of three forms, encoder, decoder and both: which patterns each form has, what is refused, the first loss."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.gaussian_transformer import gaussian_transformer
from kinformer.members.hard_coded_gaussian import hard_coded_gaussian
from kinformer.members.localness import localness
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.attention import Attention

MEMBERS = (localness, gaussian_transformer, hard_coded_gaussian)
TINY = {"d": 16, "depth": 2, "heads": 2, "vocab": 11}


def attentions(model: nn.Module, *, cross: bool = False) -> list[Attention]:
    return [part for part in model.modules() if isinstance(part, Attention) and part.cross is cross]


@pytest.mark.parametrize("member", MEMBERS)
def test_each_has_three_forms_and_reads_ahead_in_an_encoder_alone(member: Callable) -> None:
    forms = {"encoder": MLM, "decoder": LM, "encoder_decoder": Seq2Seq}
    for form, kind in forms.items():
        model = member(**TINY, form=form)
        assert type(model) is kind
        patterns = [layer.mechanism.pattern for layer in attentions(model)]
        assert patterns == {"encoder": [Full()] * 2, "decoder": [Causal()] * 2}.get(form, [Full()] * 2 + [Causal()] * 2)
        assert len(attentions(model, cross=True)) == 2 * (form == "encoder_decoder")


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
        (hard_coded_gaussian, {"heads": 3}, "d=16 is not a multiple of heads=3"),
        *((member, {"depth": 0}, "depth=0: give a whole number of at least 1") for member in MEMBERS),
    ],
)
def test_what_means_nothing_is_refused(member: Callable, keywords: dict, says: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refusal:
        member(**{**TINY, **keywords})
    assert "\n" not in str(refusal.value) and says in str(refusal.value)


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("form", ["encoder", "decoder", "encoder_decoder"])
def test_the_first_loss_is_that_of_guessing(member: Callable, form: str) -> None:
    torch.manual_seed(0)
    model = member(d=32, depth=2, heads=2, form=form)
    loss = float(model(model.sample(4, 60, 0)).total.detach())
    assert abs(loss / math.log(256) - 1) < 0.1
