"""calm: a probe that learns after its layers, which stay as they were."""

import math
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load, save
from kinformer.lab.data.batches import Batches
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.lab.train.training_stages import carry_weights
from kinformer.members.calm import calm

TINY = {"d": 16, "depth": 3, "heads": 2, "length": 32, "vocab": 7}


def test_a_probe_is_trained_after_the_layers_of_another_calm() -> None:
    torch.manual_seed(0)
    old = calm(**TINY)
    new = calm(**TINY, confidence="probe", frozen=True)
    carry_weights(old, new)
    probe = set(new.exits.rule.parameters())
    assert {p for p in new.parameters() if p.requires_grad} == probe and len(probe) == 2
    optimiser = torch.optim.SGD([p for p in new.parameters() if p.requires_grad], 0.5)
    before = [p.clone() for p in new.exits.rule.parameters()]
    new(torch.randint(0, 7, (4, 9))).total.backward()
    optimiser.step()
    assert all(not torch.equal(p, was) for p, was in zip(new.exits.rule.parameters(), before, strict=True))
    new_weights = new.state_dict()
    assert all(torch.equal(weight, new_weights[name]) for name, weight in old.state_dict().items())
    with pytest.raises(ValueError, match="frozen=True has no effect with confidence='saturation'"):
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


def test_a_probe_changes_no_layer_in_a_training() -> None:
    """Without its loss (alpha=0) the layers end with the same weights, to the bit."""
    models = []
    for alpha in (0.0, 1.0, 1000.0):
        torch.manual_seed(0)
        model = calm(**TINY, confidence="probe")
        model.alpha = alpha
        data = Batches([model.sample(4, 13, seed) for seed in range(5)])
        train(model, data, StepBudget(20), Settings(batch=4, length=12, lr=1e-2, clip=0.05, measures=1))
        models.append({name: weight for name, weight in model.state_dict().items() if ".rule." not in name})
    for other in models[1:]:
        assert all(torch.equal(weight, other[name]) for name, weight in models[0].items())


def test_a_balanced_probe_of_an_earlier_version_is_loaded_and_begins_to_count(tmp_path: Path) -> None:
    model = calm(**TINY, confidence="probe", balance=True)
    probe = model.exits.rule.confidence
    probe.share = probe.steps = None
    save(model, tmp_path)
    loaded = load(tmp_path).exits.rule.confidence
    assert torch.equal(loaded.unit.weight, probe.unit.weight)
    assert loaded.share.tolist() == [0.5, 0.5] and loaded.steps.item() == 0
