"""CALM: where half of the tokens are easy, eight calibrated layers write at least 1.5 times as fast as all of them."""

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

from kinformer.lab.claims.support.half_easy import DEPTH, WIDE, Size, full, lost, prompts, rules, seconds, trained
from kinformer.lab.claims.support.verdict import Claim, Draw, Measure
from kinformer.nn.exits.learn_then_test import learn_then_test
from kinformer.nn.exits.never_exit import NeverExit

DELTA, EPSILON, TEXTS, GRID = 0.1, 0.05, 200, 11
SAYS = "calibrated at delta 0.1 on a task of which half is easy, eight layers write 1.5 times as fast as all of them"
SOURCE = "Schuster et al., 2022, arXiv:2207.07061, abstract (up to three times as fast); threshold of this library"


class Run(NamedTuple):
    """What one training came to: speed over all layers, the loss on texts of test, and layers of hard and easy tokens.

    places: the mean layers of each place of an answer. threshold: None where nothing was proven.
    """

    speed: float
    loss: float
    places: list[float]
    threshold: float | None


def run(seed: int, size: Size = WIDE, texts: int = TEXTS) -> Run:
    """Train, calibrate a softmax response on valid by textual consistency, and write texts of test by it."""
    model = trained(seed, size)
    rule, given, fresh = rules(model)["softmax response"], prompts(model, "valid", texts), prompts(model, "test", texts)
    whole = full(model, given)
    grid = rule.grid(GRID)
    found = learn_then_test(grid, lambda one: lost(model, rule, one, given, whole).textual, DELTA, EPSILON)
    if found.threshold is None:
        return Run(1.0, 0.0, [float(DEPTH)] * given.tokens, None)
    told = lost(model, rule, found.threshold, fresh, full(model, fresh))
    took = seconds(model, {"exits": rule, "full": NeverExit()}, fresh)
    assert isinstance(found.threshold, float)
    return Run(took["full"] / took["exits"], mean(told.textual), told.places, found.threshold)


def claim(seeds: Sequence[int], size: Size = WIDE, texts: int = TEXTS) -> Claim:
    """Speed at batch 1, and what is lost on texts that calibration has not seen, by seeds."""
    runs = [run(seed, size, texts) for seed in seeds]
    measures = (
        Measure("speed over the full model, batch 1", [one.speed for one in runs], "least", 1.5, nothing=1.0),
        Measure("texts of test apart from the full model's", [one.loss for one in runs], "most", DELTA),
    )
    hard, easy = ([mean(one.places[first::2]) for one in runs] for first in (0, 1))
    told = {
        f"layers of {DEPTH} of a hard token": f"{mean(hard):.2f}",
        f"layers of {DEPTH} of an easy token": f"{mean(easy):.2f}",
        "thresholds": ", ".join("none" if one.threshold is None else f"{one.threshold:.2f}" for one in runs),
    }
    drawn: dict[str, Draw] = {"layers by place of the answer": partial(_draw_places, runs)}
    return Claim(SAYS, SOURCE, measures, told, drawn)


def _draw_places(runs: Sequence[Run], axes: Any) -> None:
    places = range(1, len(runs[0].places) + 1)
    for one in runs:
        axes.plot(places, one.places, "-", color="tab:gray", alpha=0.4)
        axes.plot(places[::2], one.places[::2], "o", color="tab:blue")
        axes.plot(places[1::2], one.places[1::2], "o", color="tab:orange")
    axes.plot([], [], "o", color="tab:blue", label="two looks")
    axes.plot([], [], "o", color="tab:orange", label="the capital of the one before")
    axes.set(xlabel="symbol of the answer", ylabel="layers", ylim=(0.5, DEPTH + 0.5))
    axes.legend()
