"""Calibrated exits (CALM) make eight layers 1.5 times as fast if half of the tokens are easy."""

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
SAYS = "on a task with half easy tokens, exits calibrated to delta 0.1 generate 1.5 times as fast as all eight layers"
SOURCE = "Schuster et al., 2022, arXiv:2207.07061, abstract (up to three times as fast); threshold of this library"


class HalfEasyResult(NamedTuple):
    """Result of one trained CALM, whose tokens exit early by a calibrated threshold.

    speed: time of the full model divided by the time with exits.
    loss: mean distance of generated test texts from the full model's texts.
    places: mean number of layers for the first, second, ... token of an answer.
    threshold: calibrated exit threshold. If none was proven, it is None and all tokens use all layers.
    """

    speed: float
    loss: float
    places: list[float]
    threshold: float | None


def run(seed: int, size: Size = WIDE, texts: int = TEXTS) -> HalfEasyResult:
    """Train a CALM, calibrate its early exits on validation texts, and measure them on test texts.

    A token exits if its softmax response (difference of the two largest probabilities) reaches a threshold. In the
    calibration, the loss of a text is its distance from the full model's text.

    seed: seed of the training.
    size: width, steps and learning rate of the model.
    texts: number of texts for calibration and for the test.
    """
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
    """Measure the speed of early exits at batch size 1, and their loss on new texts.

    A CALM generates texts on the task `half_easy`. The claim holds if it is at least 1.5 times as fast with calibrated
    exits as with all layers, and if the mean loss on test texts is below 0.1. Test texts take no part in the
    calibration. The loss of a text is its distance from the full model's text.

    seeds: seeds of the trainings.
    size: width, steps and learning rate of the model.
    texts: number of texts for calibration and for the test.
    """
    runs = [run(seed, size, texts) for seed in seeds]
    measures = (
        Measure(
            "speed relative to the full model, batch size 1",
            [result.speed for result in runs],
            "least",
            1.5,
            no_effect=1.0,
        ),
        Measure(
            "mean distance of test texts from the full model's texts", [result.loss for result in runs], "most", DELTA
        ),
    )
    hard, easy = ([mean(result.places[first::2]) for result in runs] for first in (0, 1))
    facts = {
        f"mean layers of a hard token, of {DEPTH}": f"{mean(hard):.2f}",
        f"mean layers of an easy token, of {DEPTH}": f"{mean(easy):.2f}",
        "thresholds by seed": ", ".join(
            "none" if result.threshold is None else f"{result.threshold:.2f}" for result in runs
        ),
    }
    lines, x = [], range(1, len(runs[0].places) + 1)
    for layers in (result.places for result in runs):
        lines.append(PlotLine(x, layers, "", "-", "tab:gray", 0.4))
        lines.append(PlotLine(x[::2], layers[::2], "hard: two lookups", "o", "tab:blue"))
        lines.append(PlotLine(x[1::2], layers[1::2], "easy: capital of the letter before", "o", "tab:orange"))
    plot = Plot("layers by place in the answer", "symbol of the answer", "mean layers", lines, ylim=(0.5, DEPTH + 0.5))
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
