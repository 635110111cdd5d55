"""calm: a probe that learns after its layers, which stay as they were."""

import math

import pytest
import torch

from kinformer.members.calm import calm
from kinformer.train.stages import carry

TINY = {"d": 16, "depth": 3, "heads": 2, "length": 32, "vocab": 7}


def test_a_probe_is_trained_after_the_layers_of_another_calm() -> None:
    torch.manual_seed(0)
    old = calm(**TINY)
    new = calm(**TINY, confidence="probe", frozen=True)
    carry(old, new)
    probe = set(new.exits.rule.parameters())
    assert {p for p in new.parameters() if p.requires_grad} == probe and len(probe) == 2
    optimiser = torch.optim.SGD([p for p in new.parameters() if p.requires_grad], 0.5)
    before = [p.clone() for p in new.exits.rule.parameters()]
    new(torch.randint(0, 7, (4, 9))).total.backward()
    optimiser.step()
    assert all(not torch.equal(p, was) for p, was in zip(new.exits.rule.parameters(), before, strict=True))
    kept = new.state_dict()
    assert all(torch.equal(weight, kept[name]) for name, weight in old.state_dict().items())
    with pytest.raises(ValueError, match="frozen=True is not read with confidence='saturation'"):
        calm(**TINY, confidence="saturation", frozen=True)


@pytest.mark.parametrize(
    ("confidence", "temperature", "ends"),
    [
        ("softmax_response", "paper", (0.55, 0.45 + 0.1 * math.exp(-4))),
        ("probe", "paper", (0.55, 0.45 + 0.1 * math.exp(-4))),
        ("saturation", "paper", (0.55, 0.55)),  # the paper's 0
        ("saturation", 4.0, (0.55, 0.45 + 0.1 * math.exp(-4))),
        ("softmax_response", 0, (0.55, 0.55)),
    ],
)
def test_the_threshold_falls_as_the_paper_has_it_with_each_confidence(
    confidence: str, temperature: float | str, ends: tuple[float, float]
) -> None:
    rule = calm(**TINY, confidence=confidence, threshold=0.5, temperature=temperature).exits.rule
    assert rule.threshold.ends == pytest.approx(ends)
    assert rule.threshold.ends == tuple(rule.threshold(torch.tensor([[0, TINY["length"]]]))[0].tolist())
    assert calm(**TINY, confidence=confidence, threshold=0.5, temperature=None).exits.rule.threshold == 0.5
