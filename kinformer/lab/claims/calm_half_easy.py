"""CALM: where half of the tokens are easy, eight calibrated layers write at least 1.5 times as fast as all of them."""

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from kinformer.lab.calibrate.learn_then_test import learn_then_test
from kinformer.lab.claims.support.half_easy import (
    DEPTH,
    WIDE,
    Size,
    measure_losses,
    prompts,
    rules,
    seconds,
    train_calm,
    write_by_full_model,
)
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine
from kinformer.nn.exits.never_exit import NeverExit

DELTA, EPSILON, TEXTS, GRID = 0.1, 0.05, 200, 11
SAYS = "calibrated at delta 0.1 on a task of which half is easy, eight layers write 1.5 times as fast as all of them"
SOURCE = "Schuster et al., 2022, arXiv:2207.07061, abstract (up to three times as fast); threshold of this library"


class HalfEasyResult(NamedTuple):
    """What one training came to: speed over all layers, the loss on texts of test, and layers of hard and easy tokens.

    places: the mean layers of each place of an answer. threshold: None where nothing was proven.
    """

    speed: float
    loss: float
    places: list[float]
    threshold: float | None


def run(seed: int, size: Size = WIDE, texts: int = TEXTS) -> HalfEasyResult:
    """Train, calibrate a softmax response on valid by textual consistency, and write texts of test by it."""
    model = train_calm(seed, size)
    rule, inputs, fresh = (
        rules(model)["softmax response"],
        prompts(model, "valid", texts),
        prompts(model, "test", texts),
    )
    whole = write_by_full_model(model, inputs)
    grid = rule.grid(GRID)
    test = learn_then_test(
        grid, lambda threshold: measure_losses(model, rule, threshold, inputs, whole).textual, DELTA, EPSILON
    )
    if test.threshold is None:
        return HalfEasyResult(1.0, 0.0, [float(DEPTH)] * inputs.tokens, None)
    result = measure_losses(model, rule, test.threshold, fresh, write_by_full_model(model, fresh))
    took = seconds(model, {"exits": rule, "full": NeverExit()}, fresh)
    assert isinstance(test.threshold, float)
    return HalfEasyResult(took["full"] / took["exits"], mean(result.textual), result.places, test.threshold)


def claim(seeds: Sequence[int], size: Size = WIDE, texts: int = TEXTS) -> Claim:
    """Speed at batch 1, and what is lost on texts that calibration has not seen, by seeds."""
    runs = [run(seed, size, texts) for seed in seeds]
    measures = (
        Measure("speed over the full model, batch 1", [result.speed for result in runs], "least", 1.5, no_effect=1.0),
        Measure("texts of test apart from the full model's", [result.loss for result in runs], "most", DELTA),
    )
    hard, easy = ([mean(result.places[first::2]) for result in runs] for first in (0, 1))
    facts = {
        f"layers of {DEPTH} of a hard token": f"{mean(hard):.2f}",
        f"layers of {DEPTH} of an easy token": f"{mean(easy):.2f}",
        "thresholds": ", ".join("none" if result.threshold is None else f"{result.threshold:.2f}" for result in runs),
    }
    lines, x = [], range(1, len(runs[0].places) + 1)
    for layers in (result.places for result in runs):
        lines.append(PlotLine(x, layers, "", "-", "tab:gray", 0.4))
        lines.append(PlotLine(x[::2], layers[::2], "two looks", "o", "tab:blue"))
        lines.append(PlotLine(x[1::2], layers[1::2], "the capital of the one before", "o", "tab:orange"))
    plot = Plot("layers by place of the answer", "symbol of the answer", "layers", lines, ylim=(0.5, DEPTH + 0.5))
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
