"""Tuning: which numbers of a kNN-LM are best on valid, and a picture of how good the others are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import torch  # noqa: E402  (the backend is chosen first)
from matplotlib import pyplot  # noqa: E402

from kinformer.core.neighbours import Store  # noqa: E402
from kinformer.lab.train.evaluate import Measurement  # noqa: E402
from kinformer.models.lm import LM  # noqa: E402
from kinformer.models.support.sweeps import CacheSweep, NearestSweep, Swept, swept  # noqa: E402
from kinformer.models.support.wrapped import Wrapped  # noqa: E402
from kinformer.pages.saved import saved  # noqa: E402

KS = (1, 4, 16, 64, 256, 1024, 4096)
SPAN = 0.1  # bits that a picture is high, at least
THETAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

Measure = Callable[[Any], Measurement]


def sweep_cache(model: LM, size: int, measure: Measure) -> Swept:
    """Every theta and share of a cache of this size."""
    sweeps = [swept(measure(CacheSweep(model, size=size, theta=theta))) for theta in THETAS]
    return Swept(sweeps[0].own, {name: bits for sweep in sweeps for name, bits in sweep.choices.items()})


def sweep_nearest(model: LM | Wrapped, store: Store, tap: str, k: int, tokens: torch.Tensor, measure: Measure) -> Swept:
    """Every share, temperature and number of neighbours up to `k`, in one reading."""
    one = NearestSweep(model, store, tap, k=k)
    ks = [*(n for n in KS if n < k), k]
    return swept(measure(one.sweep(ks, one.spread(tokens))))


def draw(found: Swept, path: Path, title: str) -> None:
    """Bits against the share for each number of neighbours, and against temperature, the rest being the best."""
    best, (figure, (left, right)) = (
        found.best,
        pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True),
    )
    for k in sorted({one.k for one in found.choices}):
        mine = {one: bits for one, bits in found.choices.items() if one.k == k}
        top = min(mine, key=mine.__getitem__)
        curve = {one.weight: bits for one, bits in mine.items() if one.temperature == top.temperature}
        left.plot(list(curve), list(curve.values()), marker=".", label=f"k={k:,}, temperature {top.temperature:g}")
    for weight in sorted({best.weight, 0.1, 0.25, 0.5}):
        bits = {one.temperature: of for one, of in found.choices.items() if (one.k, one.weight) == (best.k, weight)}
        if bits:
            right.plot(list(bits), list(bits.values()), marker=".", label=f"lambda {weight:g}, k={best.k:,}")
    low, high = min(found.choices.values()), found.own
    span = max(high - low, SPAN)
    left.set(xlabel="lambda", ylabel="bits per byte of valid", ylim=(low - 0.1 * span, high + span))
    right.set(xlabel="temperature", xscale="log")
    for axes in (left, right):
        axes.axhline(found.own, linestyle="--", color="gray", label="without neighbours")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    saved(figure, path)
    pyplot.close(figure)
