"""A sample of keys finds Informer's active queries; forecasts stay within 10% of full attention."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from kinformer.core.batch import SeriesWindows
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.batches import Batches
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.train.fit import fit
from kinformer.members.informer import Kind, informer
from kinformer.models.forecast import Forecast
from kinformer.nn.mechanisms.probsparse import ProbSparse

CONTEXT, HORIZON, PERIODS, NOISE = 96, 24, (24.0, 12.0, 7.3), 0.3
KINDS: tuple[Kind, Kind] = ("probsparse", "full")
STEPS, BATCH, VALID, RATE = 300, 16, 128, 3e-3
MINUTES = 1  # of a default run with three seeds
LEARNED = 0.5  # largest error relative to a forecast of 0; two untrained models would be equally good
SAYS = "a sample of keys finds the queries with the largest M, and forecasts with them are within 10% of full attention"
SOURCE = "Zhou et al., 2020, arXiv:2012.07436, sections 3.1 and 4"


def series(rows: int, seed: int, noise: float = NOISE) -> SeriesWindows:
    """Return windows of random time series: sums of sines with random phases, plus noise.

    rows: number of windows.
    seed: seed of phases and noise.
    noise: standard deviation of the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    at = torch.arange(CONTEXT + HORIZON)
    phase = torch.rand(rows, len(PERIODS), 1, generator=generator)
    waves = (2 * torch.pi * (at / torch.tensor(PERIODS)[:, None] + phase)).sin()  # [B 3 T]
    whole = waves.sum(1) + noise * torch.randn(rows, len(at), generator=generator)
    return SeriesWindows(whole[..., None], torch.zeros(rows, len(at), 0))


def train_informer(attention: Kind, seed: int, steps: int) -> tuple[Forecast, float]:
    """Train a small Informer to forecast series, and return it with its validation mean squared error.

    attention: kind of attention: "probsparse" (only the most active queries attend) or "full".
    seed: seed of the weights and of the training.
    steps: number of training steps.
    """
    with seeded(seed):
        model = informer(
            channels=1,
            calendar=0,
            context=CONTEXT,
            horizon=HORIZON,
            d=32,
            heads=2,
            hidden=64,
            attention=attention,
            dropout=0.0,
        )
        data = Batches(lambda step: series(BATCH, 10_000 * (seed + 1) + step), [series(VALID, 9_999)])
        return model, fit(model, data, steps=steps, lr=RATE, seed=seed).points[-1].valid


@torch.no_grad()
def hits(model: Forecast, batch: SeriesWindows) -> tuple[float, float]:
    """Return the share of the most active queries that ProbSparse attention finds, and the chance level.

    M measures how far the attention of a query is from uniform. The most active queries have the largest M over all
    keys, in the lowest layer. ProbSparse attention computes M from a sample of the keys. The chance level is the number
    of chosen queries divided by the number of all queries.

    model: Informer with ProbSparse attention.
    batch: windows to read.
    """
    choices: list[Tensor] = []
    layer = next(part for part in model.encoders[0].modules() if isinstance(part, ProbSparse))
    exact = ProbSparse(factor=layer.factor, measure="max-mean")

    def watch(part: ProbSparse, inputs: tuple[Any, ...]) -> None:
        queries, keys, _, ctx = inputs
        request, _ = part.make_request(queries, keys, None, ctx)
        choices.extend(measure.choose_queries(request) for measure in (part, exact))

    hook = layer.register_forward_pre_hook(watch)
    try:
        model.eval().forecast(batch)
    finally:
        hook.remove()
    sampled, true = choices
    rate = (sampled[..., :, None] == true[..., None, :]).any(-1).double().mean()
    return float(rate), true.shape[-1] / CONTEXT


def claim(seeds: Sequence[int], steps: int = STEPS, learned: float = LEARNED) -> Claim:
    """Measure which active queries ProbSparse attention finds, and its forecast error.

    M measures how far the attention of a query is from uniform. ProbSparse attention computes M from a sample of the
    keys, and only the queries with the largest M attend. The claim holds if three conditions are met. The sample finds
    at least half of the queries whose M over all keys is largest. The mean squared error of the forecasts is at most
    1.1 times the error with full attention. The error with full attention is at most half of the error of a forecast of
    0, which shows that the model has learned.

    seeds: seeds of the trainings.
    steps: number of training steps.
    learned: largest error with full attention for the last condition, divided by the error of a forecast of 0.
    """
    few, full = ([train_informer(kind, seed, steps) for seed in seeds] for kind in KINDS)
    rates, blind = zip(*(hits(model, series(16, 77)) for model, _ in few), strict=True)
    nothing = float(series(VALID, 9_999).values[:, CONTEXT:].square().mean())
    ratios = [error / other for (_, error), (_, other) in zip(few, full, strict=True)]
    measures = (
        Measure(
            "share of the queries with the largest M that the sample finds", rates, "least", 0.5, no_effect=blind[0]
        ),
        Measure("mean squared error divided by the error of full attention", ratios, "most", 1.1),
        Measure(
            "mean squared error of full attention divided by the error of a forecast of 0",
            [e / nothing for _, e in full],
            "most",
            learned,
        ),
    )
    facts = {
        f"mean squared error, {kind}": f"{mean(error for _, error in trainings):.4f}"
        for kind, trainings in zip(KINDS, (few, full), strict=True)
    }
    facts["share that random queries would find"] = f"{blind[0]:.3f}"
    facts["mean squared error of the noise, which cannot be forecast"] = f"{NOISE**2:.4f}"
    forecasts = dict(zip(KINDS, (few[0][0], full[0][0]), strict=True))
    return Claim(SAYS, SOURCE, measures, facts, (_plot(f"a sum of sines, after {steps} steps", forecasts),))


@torch.no_grad()
def _plot(title: str, models: dict[Kind, Forecast]) -> Plot:
    batch, at = series(1, 78), range(1 - CONTEXT, HORIZON + 1)
    rows = batch.values[0, CONTEXT // 2 :, 0].tolist()
    lines = [PlotLine(at[CONTEXT // 2 :], rows, "true values", colour="tab:gray")]
    for name, model in models.items():
        lines.append(PlotLine(at[CONTEXT:], model.eval().forecast(batch)[0, :, 0].tolist(), name))
    return Plot(title, "time steps after the last known value", lines=lines)
