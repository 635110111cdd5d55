"""Set Transformer: it tells the largest of a set of numbers better than a mean does, whatever their order."""

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.sets import SetData as Data
from kinformer.lab.data.sets import read
from kinformer.members.set_transformer import set_transformer
from kinformer.models.sets import Sets

STEPS, ROWS, RATES = 300, 64, (3e-3, 1e-2)
SMALL: dict[str, Any] = {"d": 32, "depth": 2, "norm": "none"}
ALONE: dict[str, Any] = {**SMALL, "encoder": "alone"}
MODELS: dict[str, dict[str, Any]] = {
    "Set Transformer": {**SMALL, "inducing": None},
    "mean of elements": {**ALONE, "pooling": "mean"},
    "largest of elements": {**ALONE, "pooling": "max"},
}
SAYS = "a Set Transformer is less far off the largest of a set than a mean over its elements, whatever their order"
SOURCE = "Lee et al., 2018, arXiv:1810.00825, sections 2 and 5.1"


class Trained(NamedTuple):
    """A model, how far off it is on valid, and of the sets of each size."""

    model: Sets
    error: float
    by_size: dict[int, float]


def trained(of: dict[str, Any], data: Data, seed: int, rate: float, steps: int) -> Trained:
    """A model after so many steps, the rate warmed up and then falling to 0."""
    torch.manual_seed(seed)
    model = set_transformer(**of)
    batches, optimiser = data.stream(model, ROWS, 0, seed, 1 << 16), torch.optim.Adam(model.parameters(), rate)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 30) * (1 - step / steps)
        optimiser.zero_grad()
        model(batches.at(step)).total.backward()
        optimiser.step()
    elements, marks, right = data.valid.first(1024)
    with torch.no_grad():
        off = (model.eval().says(elements, marks) - right).abs()
    sizes = (marks >= 0).sum(1)
    return Trained(model, float(off.mean()), {int(n): float(off[sizes == n].mean()) for n in sizes.unique()})


def best(of: dict[str, Any], data: Data, seeds: Sequence[int], rates: Sequence[float], steps: int) -> list[Trained]:
    """A model of each seed, at the rate that is best on average."""
    tried = [[trained(of, data, seed, rate, steps) for seed in seeds] for rate in rates]
    return min(tried, key=lambda found: mean(one.error for one in found))


@torch.no_grad()
def moved(model: Sets, data: Data, seed: int) -> tuple[float, float]:
    """How far an answer and an encoded element are from those of the set in another order, over the largest of them."""
    elements, marks, _ = data.valid.first(64)
    order = torch.rand(marks.shape, generator=torch.Generator().manual_seed(seed)).argsort(1)
    other, their = elements.take_along_dim(order[..., None], 1), marks.take_along_dim(order, 1)
    said, again = model.says(elements, marks), model.says(other, their)
    found = model.encoded(elements, marks).y.take_along_dim(order[..., None], 1)
    real = (their >= 0)[..., None]
    return _apart(again, said), _apart(model.encoded(other, their).y * real, found * real)


def claim(seeds: Sequence[int], rates: Sequence[float] = RATES, steps: int = STEPS) -> Claim:
    """Each at the best of these rates; the Set Transformers are then shown sets in another order."""
    data = read("maximum")
    found = {name: best(of, data, seeds, rates, steps) for name, of in MODELS.items()}
    ours, theirs = (found[name] for name in ("Set Transformer", "mean of elements"))
    apart = [moved(one.model, data, seed) for one, seed in zip(ours, seeds, strict=True)]
    off = [one.error / other.error for one, other in zip(ours, theirs, strict=True)]
    measures = (
        Measure("error over that of a mean of elements", off, "most", 1.0),
        Measure("furthest answer of a permuted set", [one for one, _ in apart], "most", 1e-6),
        Measure("furthest element of the encoder of a permuted set", [other for _, other in apart], "most", 1e-6),
    )
    told = {
        f"absolute error after {steps} steps, {name}": f"{mean(one.error for one in of):.4f} of numbers from 0 to 1"
        for name, of in found.items()
    }
    return Claim(SAYS, SOURCE, measures, told, {"absolute error by the number of elements": partial(_draw, found)})


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def _draw(found: dict[str, list[Trained]], axes: Any) -> None:
    for (name, of), colour in zip(found.items(), ("tab:blue", "tab:gray", "tab:green"), strict=True):
        for n, one in enumerate(of):
            axes.plot(list(one.by_size), list(one.by_size.values()), "o-", color=colour, label=None if n else name)
    least = min(error for of in found.values() for one in of for error in one.by_size.values())
    axes.set(yscale="log", xlabel="elements", ylabel="absolute error", ylim=(least / 20, None))
    axes.legend(loc="lower left")
