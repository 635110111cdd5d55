"""A Set Transformer finds the largest number of a set better than a mean, in any order."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.sets import SetData as Data
from kinformer.lab.data.sets import read
from kinformer.lab.plot import Plot, PlotLine
from kinformer.members.set_transformer import set_transformer
from kinformer.models.set_regressor import SetRegressor

STEPS, ROWS, RATES = 300, 64, (3e-3, 1e-2)
MINUTES = 1.5  # of a default run with three seeds
SMALL: dict[str, Any] = {"d": 32, "depth": 2, "norm": "none"}
ALONE: dict[str, Any] = {**SMALL, "encoder": "alone"}
MODELS: dict[str, dict[str, Any]] = {
    "Set Transformer": {**SMALL, "inducing": None},
    "mean of elements": {**ALONE, "pooling": "mean"},
    "largest of elements": {**ALONE, "pooling": "max"},
}
SAYS = (
    "a Set Transformer predicts the largest number of a set better than a mean, and its prediction does not depend on "
    "the order"
)
SOURCE = "Lee et al., 2018, arXiv:1810.00825, sections 2 and 5.1"


class TrainedSets(NamedTuple):
    """A model trained to find the largest number of a set, with its errors on validation sets.

    model: trained model.
    error: mean absolute error over all sets.
    by_size: mean absolute error for sets of each size.
    """

    model: SetRegressor
    error: float
    by_size: dict[int, float]


def train_on_sets(of: dict[str, Any], data: Data, seed: int, rate: float, steps: int) -> TrainedSets:
    """Train a model on sets and return it with its validation errors.

    The learning rate rises for 30 steps and falls to 0 at the end.

    of: arguments of the member (named model) `set_transformer`, which builds the model.
    data: sets to learn from.
    seed: seed of the weights and of the batches.
    rate: peak learning rate.
    steps: number of training steps.
    """
    torch.manual_seed(seed)
    model = set_transformer(**of)
    batches, optimiser = data.stream(model, ROWS, 0, seed, 1 << 16), torch.optim.Adam(model.parameters(), rate)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 30) * (1 - step / steps)
        optimiser.zero_grad()
        model(batches.at(step)).total.backward()
        optimiser.step()
    elements, marks, right = data.valid.first_sets(1024)
    with torch.no_grad():
        off = (model.eval().predict(elements, marks) - right).abs()
    sizes = (marks >= 0).sum(1)
    return TrainedSets(model, float(off.mean()), {int(n): float(off[sizes == n].mean()) for n in sizes.unique()})


def best(of: dict[str, Any], data: Data, seeds: Sequence[int], rates: Sequence[float], steps: int) -> list[TrainedSets]:
    """Train a model per seed at each learning rate; return the models of the rate with the smallest error.

    The error is the mean over all seeds.

    of: arguments of the member (named model) `set_transformer`, which builds the models.
    data: sets to learn from.
    seeds: seeds of the trainings.
    rates: peak learning rates.
    steps: number of training steps.
    """
    tried = [[train_on_sets(of, data, seed, rate, steps) for seed in seeds] for rate in rates]
    return min(tried, key=lambda runs: mean(run.error for run in runs))


@torch.no_grad()
def permutation_error(model: SetRegressor, data: Data, seed: int) -> tuple[float, float]:
    """Return how much answers and encoded elements change if the elements of the sets are permuted.

    A change is the largest difference divided by the largest absolute value.

    model: trained model.
    data: sets.
    seed: seed of the permutation.
    """
    elements, marks, _ = data.valid.first_sets(64)
    order = torch.rand(marks.shape, generator=torch.Generator().manual_seed(seed)).argsort(1)
    other, their = elements.take_along_dim(order[..., None], 1), marks.take_along_dim(order, 1)
    answers, permuted = model.predict(elements, marks), model.predict(other, their)
    encoded = model.encode(elements, marks).y.take_along_dim(order[..., None], 1)
    real = (their >= 0)[..., None]
    return _relative_difference(permuted, answers), _relative_difference(
        model.encode(other, their).y * real, encoded * real
    )


def claim(seeds: Sequence[int], rates: Sequence[float] = RATES, steps: int = STEPS) -> Claim:
    """Compare a Set Transformer with pooled elements at finding the largest number, and permute its sets.

    Each model has the learning rate with the smallest error. The claim holds if two conditions are met. The mean
    absolute error of the Set Transformer is below the error of a model that encodes each element separately and takes
    the mean. A permutation of a set changes the answers and encoded elements of the Set Transformer by at most 1e-6,
    relative to the largest. A model that takes the maximum of separately encoded elements is reported for comparison.

    seeds: seeds of the trainings.
    rates: peak learning rates to try.
    steps: number of training steps.
    """
    data = read("maximum")
    runs = {name: best(of, data, seeds, rates, steps) for name, of in MODELS.items()}
    ours, theirs = (runs[name] for name in ("Set Transformer", "mean of elements"))
    apart = [permutation_error(run.model, data, seed) for run, seed in zip(ours, seeds, strict=True)]
    off = [run.error / other.error for run, other in zip(ours, theirs, strict=True)]
    measures = (
        Measure("mean absolute error divided by the error of a mean of elements", off, "most", 1.0),
        Measure("largest relative change of an answer if the set is permuted", [run for run, _ in apart], "most", 1e-6),
        Measure(
            "largest relative change of an encoded element if the set is permuted",
            [other for _, other in apart],
            "most",
            1e-6,
        ),
    )
    facts = {
        f"mean absolute error after {steps} steps, {name}": f"{mean(run.error for run in of):.4f} (numbers from 0 to 1)"
        for name, of in runs.items()
    }
    least = min(error for runs in runs.values() for run in runs for error in run.by_size.values())
    lines = [
        PlotLine(list(run.by_size), list(run.by_size.values()), name, "o-")
        for name, runs in runs.items()
        for run in runs
    ]
    plot = Plot(
        "error by the number of elements",
        "elements in the set",
        "mean absolute error",
        lines,
        log="y",
        ylim=(least / 20, None),
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))


def _relative_difference(x: Tensor, other: Tensor) -> float:
    return float((x - other).abs().max() / other.abs().max())
