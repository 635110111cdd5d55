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
    found = sparse(model)
    assert [one.causal for one in found] == [False] * 3 + [True] * 2
    assert {one.rest for one in found if one.causal} == {"sum"} and {one.divisor for one in found} == {"row"}
    assert len({one.chance.seed for one in found[:3] if one.chance}) == 3
    assert sum(isinstance(part, Softmax) for part in model.modules()) == 2
    full = informer(**{key: value for key, value in TINY.items() if key != "factor"}, attention="full")
    assert not sparse(full) and sum(isinstance(part, Softmax) for part in full.modules()) == 4
    with pytest.raises(ValueError, match="factor"):
        informer(**TINY, attention="full")


@pytest.mark.parametrize(("given", "lengths"), [({}, [4]), ({"distil": False}, [8]), ({"replicas": 1}, [4, 4])])
def test_the_encoder_s_row_is_halved_and_replicas_end_as_long(given: dict[str, Any], lengths: list[int]) -> None:
    model: Any = informer(**TINY, **given)
    found: list[int] = []
    for encoder in model.encoders:
        encoder.register_forward_hook(lambda part, inputs, out: found.append(out[0].shape[1]))
    model.forecast(model.sample(2, 0, 0))
    assert found == lengths


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"replicas": 2}, "replicas=2"),
        ({"label": 9}, "label=9"),
        ({"context": 1, "label": 1, "replicas": 1}, "last enc"),
    ],
)
def test_wrong_keywords_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        informer(**{**TINY, **given})
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
