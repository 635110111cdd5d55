"""Informer's keywords: each changes what it says it changes."""

from typing import Any

import pytest
import torch

from kinformer.members.informer import TINY, informer
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.nn.mechanisms.softmax import Softmax


def sparse(model: Any) -> list[ProbSparse]:
    return [part for part in model.modules() if isinstance(part, ProbSparse)]


def test_all_own_attention_is_probsparse_and_what_reads_the_encoder_is_softmax() -> None:
    model = informer(**TINY, depth=3, decoder_depth=2, divisor="row", rest="sum", measure="sampled")
    mechanisms = sparse(model)
    assert [mechanism.causal for mechanism in mechanisms] == [False] * 3 + [True] * 2
    assert {mechanism.rest for mechanism in mechanisms if mechanism.causal} == {"sum"} and {
        mechanism.divisor for mechanism in mechanisms
    } == {"row"}
    assert len({mechanism.chance.seed for mechanism in mechanisms[:3] if mechanism.chance}) == 3
    assert sum(isinstance(part, Softmax) for part in model.modules()) == 2
    full = informer(**{key: value for key, value in TINY.items() if key != "factor"}, attention="full")
    assert not sparse(full) and sum(isinstance(part, Softmax) for part in full.modules()) == 4
    with pytest.raises(ValueError, match="factor"):
        informer(**TINY, attention="full")


@pytest.mark.parametrize(("keywords", "lengths"), [({}, [4]), ({"distil": False}, [8]), ({"replicas": 1}, [4, 4])])
def test_the_encoder_s_row_is_halved_and_replicas_end_as_long(keywords: dict[str, Any], lengths: list[int]) -> None:
    model: Any = informer(**TINY, **keywords)
    widths: list[int] = []
    for encoder in model.encoders:
        encoder.register_forward_hook(lambda part, inputs, out: widths.append(out[0].shape[1]))
    model.forecast(model.sample(2, 0, 0))
    assert widths == lengths


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"replicas": 2}, "replicas=2"),
        ({"label": 9}, "label=9"),
        ({"context": 1, "label": 1, "replicas": 1}, "last enc"),
    ],
)
def test_wrong_keywords_are_refused(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        informer(**{**TINY, **keywords})
    assert "\n" not in str(caught.value)


def test_it_learns_a_sum_of_sines() -> None:
    torch.manual_seed(0)
    model = informer(**{**TINY, "dropout": 0.0, "channels": 1, "context": 16, "label": 8}).train()
    at, optimiser = torch.arange(19.0), torch.optim.Adam(model.parameters(), 5e-3)
    losses = []
    for _ in range(60):
        phase = torch.rand(16, 1) * 10
        values = (at / 2 + phase).sin()[..., None]
        loss = model(model.sample(16, 0, 0)._replace(values=values)).total
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
