"""Tuning of a kNN-LM (a model with a datastore): validation bits for many settings, and their plots."""

from collections.abc import Callable
from typing import Any

import torch

from kinformer.core.neighbours import Store
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.train.evaluate import Measurement
from kinformer.models.lm import LM
from kinformer.models.support.mixing_sweeps import CacheSweep, NearestNeighbourSweep, SweepResult, sweep_result
from kinformer.models.support.wrapped_lm import WrappedLM

KS = (1, 4, 16, 64, 256, 1024, 4096)
SPAN = 0.1  # least height of a plot, in bits
THETAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

Measure = Callable[[Any], Measurement]


def sweep_cache(model: LM, size: int, measure: Measure) -> SweepResult:
    """Evaluate a model with a `ContinuousCache` (recent hidden states) for many values of two settings.

    They are theta, the sharpness of the cache's distribution, and the share of its prediction.

    model: the model.
    size: tokens of the cache.
    measure: evaluates a model.
    """
    sweeps = [sweep_result(measure(CacheSweep(model, size=size, theta=theta))) for theta in THETAS]
    return SweepResult(sweeps[0].own, {name: bits for sweep in sweeps for name, bits in sweep.choices.items()})


def sweep_nearest(
    model: LM | WrappedLM, store: Store, tap: str, k: int, tokens: torch.Tensor, measure: Measure
) -> SweepResult:
    """Evaluate a model with a datastore for many settings, in one pass over the validation data.

    The settings are the number of neighbours up to `k`, the weight of their prediction in the mixture with the model's,
    and the temperature of the softmax over their distances.

    model: the model.
    store: the datastore.
    tap: name of the hidden state that is the key.
    k: largest number of neighbours.
    tokens: validation tokens. How much the distances to their neighbours vary determines the temperatures to try.
    measure: evaluates a model.
    """
    sweep = NearestNeighbourSweep(model, store, tap, k=k)
    ks = [*(n for n in KS if n < k), k]
    return sweep_result(measure(sweep.sweep(ks, sweep.spread(tokens))))


def sweep_plots(sweep: SweepResult) -> list[Plot]:
    """Plot validation bits per byte against the settings of a kNN-LM.

    The first plot shows the share of the neighbours' prediction (lambda), with a line for each number of neighbours at
    its best temperature. The second shows the temperature, with a line for each of some shares at the best number of
    neighbours.

    The best settings give the fewest bits.

    sweep: the results.
    """
    best, by_share, by_temperature = sweep.best, [], []
    for k in sorted({choice.k for choice in sweep.choices}):
        bits_by_choice = {choice: bits for choice, bits in sweep.choices.items() if choice.k == k}
        top = min(bits_by_choice, key=bits_by_choice.__getitem__).temperature
        curve = {choice.weight: bits for choice, bits in bits_by_choice.items() if choice.temperature == top}
        by_share.append(PlotLine([*curve], [*curve.values()], f"k={k:,}, temperature {top:g}", ".-"))
    for weight in sorted({best.weight, 0.1, 0.25, 0.5}):
        bits = {
            choice.temperature: y
            for choice, y in sweep.choices.items()
            if (choice.k, choice.weight) == (best.k, weight)
        }
        if bits:
            by_temperature.append(PlotLine([*bits], [*bits.values()], f"lambda {weight:g}, k={best.k:,}", ".-"))
    low, high = min(sweep.choices.values()), sweep.own
    span = max(high - low, SPAN)
    ends, levels = (low - 0.1 * span, high + span), ((sweep.own, "without neighbours"),)
    return [
        Plot("", "lambda", "validation bits per byte", by_share, levels=levels, ylim=ends),
        Plot("", "temperature", "", by_temperature, levels=levels, log="x", ylim=ends),
    ]
