"""The softmax response is the fastest of CALM's three confidences at equal risk."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

from kinformer.lab.calibrate.learn_then_test import learn_then_test
from kinformer.lab.claims.support.half_easy import (
    DEPTH,
    WIDE,
    Size,
    TextLosses,
    measure_losses,
    prompts,
    rules,
    seconds,
    train_calm,
    write_by_full_model,
)
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.never_exit import NeverExit

DELTA, EPSILON, TEXTS, GRID = 0.1, 0.05, 200, 11
BEST = "softmax response"
SAYS = "of CALM's three confidences, calibrated to the same risk, the softmax response saves the most time"
SOURCE = "Schuster et al., 2022, arXiv:2207.07061, section 5"


class Speed(NamedTuple):
    """Speed of a CALM whose tokens exit early if a confidence reaches its calibrated threshold.

    speed: time of the full model divided by the time with exits.
    layers: mean number of layers per token.
    loss: mean distance of the generated texts from the full model's texts, in calibration.
    """

    speed: float
    layers: float
    loss: float


def speeds(seed: int, size: Size = WIDE, texts: int = TEXTS) -> dict[str, Speed]:
    """Calibrate an exit threshold for each of CALM's three confidences, and return the speeds.

    The procedure Learn then Test chooses each threshold. If it proves no threshold for a confidence, the full model is
    used.

    seed: seed of the training.
    size: width, steps and learning rate of the model.
    texts: number of calibration texts.
    """
    model = train_calm(seed, size)
    inputs = prompts(model, "valid", texts)
    whole, leaving = write_by_full_model(model, inputs), dict[str, ExitRule]({"full": NeverExit()})
    layers_and_loss: dict[str, tuple[float, float]] = {}
    for name, rule in rules(model).items():
        tested = dict[Any, TextLosses]()

        def losses(threshold: Any, rule: Any = rule, tested: Any = tested) -> list[float]:
            tested[threshold] = measure_losses(model, rule, threshold, inputs, whole)
            return tested[threshold].textual

        chosen = learn_then_test(rule.grid(GRID), losses, DELTA, EPSILON).threshold
        layers_and_loss[name] = (
            (float(DEPTH), 0.0) if chosen is None else (tested[chosen].layers, mean(tested[chosen].textual))
        )
        if chosen is not None:
            rule.leave_at(chosen)
        leaving[name] = NeverExit() if chosen is None else rule
    took = seconds(model, leaving, inputs)
    return {name: Speed(took["full"] / took[name], *of) for name, of in layers_and_loss.items()}


def claim(seeds: Sequence[int], size: Size = WIDE, texts: int = TEXTS) -> Claim:
    """Compare the speeds of a CALM whose tokens exit early by the softmax response or another confidence.

    Measured here: the time to generate texts on the task `half_easy`. Each exit threshold is calibrated so that the
    mean loss of the texts is at most delta = 0.1, with an error probability of at most epsilon = 0.05. The claim holds
    if the softmax response is faster than the confidences saturation and classifier: each ratio of speeds must be
    above 1.

    seeds: seeds of the trainings.
    size: width, steps and learning rate of the model.
    texts: number of calibration texts.
    """
    runs = [speeds(seed, size, texts) for seed in seeds]
    names = list(runs[0])
    measures = tuple(
        Measure(
            f"speed of the softmax response divided by the speed of {name}",
            [run[BEST].speed / run[name].speed for run in runs],
            "least",
            1.0,
        )
        for name in names
        if name != BEST
    )
    means = {name: Speed(*(mean(of) for of in zip(*(run[name] for run in runs), strict=True))) for name in names}
    facts = {
        name: f"{of.speed:.2f} times as fast as the full model, {of.layers:.2f} of {DEPTH} layers, loss {of.loss:.3f}"
        for name, of in means.items()
    }
    lines = [PlotLine([x[name].layers for x in runs], [x[name].speed for x in runs], name, "o") for name in names]
    plot = Plot(
        f"calibrated to a risk of {DELTA:g}",
        f"mean layers per token, of {DEPTH}",
        "speed relative to the full model",
        lines,
        levels=((1, ""),),
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
