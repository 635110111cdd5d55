"""The claims about CALM: violations by a loop, and measurements with a model that nobody trained."""

import math
from typing import Any

import numpy
import pytest

from kinformer.lab.claims import calm_confidences, calm_guarantee, calm_half_easy
from kinformer.lab.claims.support import half_easy
from kinformer.nn.exits.confidence import Probe, Saturation, SoftmaxResponse
from kinformer.nn.exits.never_exit import NeverExit

UNTRAINED = half_easy.Size(16, 0, 0.0)


def test_violations_are_counted_against_the_mean_of_all_texts() -> None:
    """By a loop that draws the same sets."""
    rng = numpy.random.default_rng(0)
    table = [(rng.random(400) < rate).astype(float).tolist() for rate in (0.0, 0.1, 0.18, 0.3, 0.05)]
    delta, sets = 0.2, 60
    picture, broken = numpy.random.default_rng(3), 0
    for _ in range(sets):
        subset = picture.integers(0, 400, calm_guarantee.SET_SIZE)
        chosen = None
        for n, row in enumerate(table):
            risk = sum(row[i] for i in subset) / len(subset)
            if math.exp(-2 * len(subset) * max(0, delta - risk) ** 2) > calm_guarantee.EPSILON:
                break
            chosen = n
        broken += chosen is not None and sum(table[chosen]) / 400 > delta
    result = calm_guarantee.violations(table, delta, numpy.random.default_rng(3), sets)
    assert result == broken / sets
    # a threshold that is always good and one that never is, where nothing is held to be proven but by luck
    assert calm_guarantee.violations([[0.0] * 400], delta, picture, 9) == 0
    (hardest,) = calm_guarantee.hardest_losses(delta, picture)
    assert delta < sum(hardest) / len(hardest) < delta + 2 / len(hardest)


@pytest.fixture
def shallow(monkeypatch: Any) -> None:
    """Three layers rather than eight."""
    for module in (half_easy, calm_half_easy, calm_confidences):
        monkeypatch.setattr(module, "DEPTH", 3)


def test_the_three_confidences_share_a_backbone(shallow: None) -> None:
    model = half_easy.train_calm(0, UNTRAINED)
    result = half_easy.rules(model)
    kinds = {"softmax response": SoftmaxResponse, "saturation": Saturation, "classifier": Probe}
    assert {name: type(rule.confidence) for name, rule in result.items()} == kinds
    inputs = half_easy.prompts(model, "valid", 3)
    whole = half_easy.write_by_full_model(model, inputs)
    rule = result["softmax response"]
    assert half_easy.measure_losses(model, rule, 1.0, inputs, whole).layers == half_easy.DEPTH
    early = half_easy.measure_losses(model, rule, 0.0, inputs, whole)
    assert early.layers < half_easy.DEPTH and len(early.textual) == len(early.risk) == 3
    assert len(early.places) == inputs.tokens
    assert sum(early.places) / inputs.tokens == pytest.approx(early.layers)
    took = half_easy.seconds(model, {"exits": rule, "full": NeverExit()}, inputs, texts=1, rounds=1)
    assert took["exits"] > 0 and took["full"] > 0


@pytest.mark.parametrize("delta", [0.99, 0.01])
def test_speeds_are_of_what_is_proven_and_of_the_full_model_where_nothing_is(
    monkeypatch: Any, shallow: None, delta: float
) -> None:
    for module in (calm_half_easy, calm_confidences):
        monkeypatch.setattr(module, "DELTA", delta)
        monkeypatch.setattr(module, "GRID", 2)
        monkeypatch.setattr(module, "seconds", lambda model, leaving, inputs: dict.fromkeys(leaving, 1.0))
    result = calm_half_easy.run(0, UNTRAINED, texts=2)
    each = calm_confidences.speeds(0, UNTRAINED, texts=2)
    assert set(each) == {"softmax response", "saturation", "classifier"}
    if delta < 0.5:
        assert result.threshold is None and set(result.places) == {half_easy.DEPTH}
        assert all(x.layers == half_easy.DEPTH and x.loss == 0 for x in each.values())
    else:
        assert result.threshold in (0.0, 1.0) and 0 <= result.loss <= 1 and result.speed == 1
