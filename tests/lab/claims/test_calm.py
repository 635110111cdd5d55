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
    chance = numpy.random.default_rng(0)
    table = [(chance.random(400) < rate).astype(float).tolist() for rate in (0.0, 0.1, 0.18, 0.3, 0.05)]
    delta, sets = 0.2, 60
    drawn, broken = numpy.random.default_rng(3), 0
    for _ in range(sets):
        some = drawn.integers(0, 400, calm_guarantee.DRAWN)
        chosen = None
        for n, row in enumerate(table):
            risk = sum(row[i] for i in some) / len(some)
            if math.exp(-2 * len(some) * max(0, delta - risk) ** 2) > calm_guarantee.EPSILON:
                break
            chosen = n
        broken += chosen is not None and sum(table[chosen]) / 400 > delta
    found = calm_guarantee.violations(table, delta, numpy.random.default_rng(3), sets)
    assert found == broken / sets
    # a threshold that is always good and one that never is, where nothing is held to be proven but by luck
    assert calm_guarantee.violations([[0.0] * 400], delta, drawn, 9) == 0
    (hardest,) = calm_guarantee.hardest(delta, drawn)
    assert delta < sum(hardest) / len(hardest) < delta + 2 / len(hardest)


@pytest.fixture
def shallow(monkeypatch: Any) -> None:
    """Three layers rather than eight."""
    for module in (half_easy, calm_half_easy, calm_confidences):
        monkeypatch.setattr(module, "DEPTH", 3)


def test_the_three_confidences_share_a_backbone(shallow: None) -> None:
    model = half_easy.trained(0, UNTRAINED)
    found = half_easy.rules(model)
    kinds = {"softmax response": SoftmaxResponse, "saturation": Saturation, "classifier": Probe}
    assert {name: type(rule.confidence) for name, rule in found.items()} == kinds
    given = half_easy.prompts(model, "valid", 3)
    whole = half_easy.full(model, given)
    rule = found["softmax response"]
    assert half_easy.lost(model, rule, 1.0, given, whole).layers == half_easy.DEPTH
    early = half_easy.lost(model, rule, 0.0, given, whole)
    assert early.layers < half_easy.DEPTH and len(early.textual) == len(early.risk) == 3
    assert len(early.places) == given.tokens
    assert sum(early.places) / given.tokens == pytest.approx(early.layers)
    took = half_easy.seconds(model, {"exits": rule, "full": NeverExit()}, given, texts=1, rounds=1)
    assert took["exits"] > 0 and took["full"] > 0


@pytest.mark.parametrize("delta", [0.99, 0.01])
def test_speeds_are_of_what_is_proven_and_of_the_full_model_where_nothing_is(
    monkeypatch: Any, shallow: None, delta: float
) -> None:
    for module in (calm_half_easy, calm_confidences):
        monkeypatch.setattr(module, "DELTA", delta)
        monkeypatch.setattr(module, "GRID", 2)
        monkeypatch.setattr(module, "seconds", lambda model, leaving, given: dict.fromkeys(leaving, 1.0))
    found = calm_half_easy.run(0, UNTRAINED, texts=2)
    each = calm_confidences.speeds(0, UNTRAINED, texts=2)
    assert set(each) == {"softmax response", "saturation", "classifier"}
    if delta < 0.5:
        assert found.threshold is None and set(found.places) == {half_easy.DEPTH}
        assert all(one.layers == half_easy.DEPTH and one.loss == 0 for one in each.values())
    else:
        assert found.threshold in (0.0, 1.0) and 0 <= found.loss <= 1 and found.speed == 1
