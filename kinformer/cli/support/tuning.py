"""Tuning: which numbers of a kNN-LM are best on valid, and a picture of how good the others are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import torch  # noqa: E402  (the backend is chosen first)
from matplotlib import pyplot  # noqa: E402

from kinformer.core.neighbours import Store  # noqa: E402
from kinformer.decoding.evaluating import evaluating  # noqa: E402
from kinformer.models.lm import LM  # noqa: E402
from kinformer.models.nearest import Nearest  # noqa: E402
from kinformer.models.support.sweeps import CacheSweep, Choice, NearestSweep  # noqa: E402
from kinformer.models.support.wrapped import Wrapped  # noqa: E402
from kinformer.train.evaluate import Measured, device_of  # noqa: E402

KS = (1, 4, 16, 64, 256, 1024, 4096)
THETAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
STEPS = (1 / 16, 1 / 4, 1, 4, 16)  # of temperatures, in the spread of distances
TRIED = 256  # tokens by which distances are known

Measure = Callable[[Any], tuple[Measured, float]]  # a model's bits of a byte, and how many bytes a token is


class Swept(NamedTuple):
    """The bits of a byte that the model says alone, and with each choice."""

    own: float
    choices: dict[Choice, float]

    @property
    def best(self) -> Choice:
        """The cheapest; of equal ones the first."""
        return min(self.choices, key=self.choices.__getitem__)


def sweep_cache(model: LM, size: int, measure: Measure) -> Swept:
    """Every theta and share of a cache of this size."""
    found = [_swept(*measure(CacheSweep(model, size=size, theta=theta))) for theta in THETAS]
    return Swept(found[0].own, {name: bits for one in found for name, bits in one.choices.items()})


def sweep_nearest(model: LM | Wrapped, store: Store, tap: str, k: int, tokens: torch.Tensor, measure: Measure) -> Swept:
    """Every share, temperature and number of neighbours up to `k`, in one reading."""
    one = NearestSweep(model, store, tap, k=k)
    ks = [*(n for n in KS if n < k), k]
    return _swept(*measure(one.sweep(ks, temperatures(one, tokens))))


def temperatures(model: Nearest, tokens: torch.Tensor) -> list[float]:
    """The paper's 1, and others by how far the furthest neighbour is behind the nearest."""
    with evaluating(model):
        rows = tokens[None, : min(TRIED, model.window or TRIED)].long().to(device_of(model))
        far = model.looked_up(rows, None, None, False)[1].distances
    spread = float((far.where(far < torch.inf, 0.0).amax(-1) - far[..., 0]).median()) if far.shape[-1] else 0.0
    return sorted({1.0, *(float(f"{step * spread:.2g}") for step in STEPS if step * spread > 1e-3)})


def _swept(measured: Measured, width: float) -> Swept:
    choices = {Choice.of(name): value / width for name, value in measured.others.items() if name.count(" ") == 2}
    return Swept(measured.value, choices)


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
        right.plot(list(bits), list(bits.values()), marker=".", label=f"lambda {weight:g}, k={best.k:,}")
    low, high = min(found.choices.values()), found.own
    left.set(
        xlabel="lambda",
        ylabel="bits per byte of valid",
        ylim=(low - 0.1 * (high - low + 0.01), high + 1.0 * (high - low + 0.01)),
    )
    right.set(xlabel="temperature", xscale="log")
    for axes in (left, right):
        axes.axhline(found.own, linestyle="--", color="gray", label="without neighbours")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
