"""Nystromformer: on par with softmax attention at a cost linear in the row, its inverse found in six iterations."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.attend import attend
from kinformer.core.batch import TokenBatch
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.model import ACCURACY
from kinformer.lab.claims.support.claim_models import HeadInputs, heads, mean_metric, seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.cost import cost
from kinformer.lab.data.task import TaskData, of_form
from kinformer.lab.plot import Plot, PlotLine, slope
from kinformer.lab.tasks.sorting import Sorting
from kinformer.lab.train.fit import fit
from kinformer.members.bert import bert
from kinformer.members.nystromformer import nystromformer
from kinformer.models.mlm import MLM
from kinformer.nn.mechanisms.landmarks import Segments
from kinformer.nn.mechanisms.nystrom import Nystrom

LANDMARKS, USUAL, ITERATIONS = (4, 8, 16, 32, 64), 32, (0, 2, 4, 6, 8, 10)
LONG = (1024, 2048, 4096)  # tokens of the rows whose cost is counted
TASK, STEPS, BATCH, ROWS = Sorting(length=48, symbols=12), 400, 8, 16
SIX, INVERTED = ITERATIONS.index(6), 0.1  # of |A Z A - A| / |A|, which is 0 of the inverse
SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": 4, "length": 128}
SAYS = (
    "attention through landmarks is on par with softmax attention, at a linear cost, in six iterations of its inverse"
)
SOURCE = "Xiong et al., 2021, arXiv:2102.03902, abstract and section 3"


class ApproximationErrors(NamedTuple):
    """How far from the softmax attention of a trained model its other forms are.

    error: of Nystrom attention, by its landmarks; best: of the best matrices of as low a rank; both over how far off
    the plain mean of all values is, so that 1 is no better than that.
    stopped: the error after six iterations over that with the pseudo-inverse itself.
    left: |A Z A - A| / |A| by iterations.
    """

    error: list[float]
    best: list[float]
    stopped: float
    left: list[float]


class ExactNystrom(Nystrom):
    """Nystrom attention with the pseudo-inverse of a singular value decomposition."""

    def approximate_inverse(self, a: Float[Tensor, "B H M N"]) -> Float[Tensor, "B H N M"]:
        return torch.linalg.pinv(a)


def train_and_test(model: MLM, seed: int, data: TaskData, steps: int) -> float:
    """The share of right answers on rows that a model has not seen, after a short training."""
    if steps:
        fit(model, data, steps=steps, batch=BATCH, lr=3e-3, seed=seed)
    rows = of_form(data.valid.rows(4 * ROWS), model.reads)
    return mean_metric(model.eval(), rows, ACCURACY.name)


def train_both(seed: int, data: TaskData, steps: int) -> tuple[MLM, float, float]:
    """Train a bert and a nystromformer of equal size; return the bert and both accuracies."""
    with seeded(seed):
        dense, few = bert(**SIZES), nystromformer(**SIZES, landmarks=USUAL)
        return dense, train_and_test(dense, seed, data, steps), train_and_test(few, seed, data, steps)


def tokens_of(data: TaskData) -> Int[Tensor, "B T"]:
    """Rows that no model has seen, their answers told."""
    rows = of_form(data.valid.rows(ROWS), "masked")
    assert isinstance(rows, TokenBatch)
    return rows.tokens


def measure_errors(layer: HeadInputs, landmarks: Sequence[int]) -> ApproximationErrors:
    """Of a layer's queries, keys and values."""
    q, k, v = (x.double() for x in layer)
    ctx = Context(torch.arange(q.shape[2]).expand(len(q), -1), run=True, full=True)
    whole = attend(q, k, v).y
    plain = (whole - v.mean(2, keepdim=True)).norm()

    def error(y: Tensor) -> float:
        return float((y - whole).norm() / plain)

    def read(part: Nystrom) -> float:
        return error(part(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y)

    def weights(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)

    left, values, right = torch.linalg.svd(weights(q, k))
    means = Segments.split_evenly(torch.ones_like(ctx.pos, dtype=torch.bool), USUAL).means
    a = weights(means(q), means(k))
    return ApproximationErrors(
        [read(Nystrom(m)) for m in landmarks],
        [error((left[..., :m] * values[..., None, :m]) @ right[..., :m, :] @ v) for m in landmarks],
        read(Nystrom(USUAL)) / read(ExactNystrom(USUAL)),
        [
            float((a @ Nystrom(USUAL, iterations=n).approximate_inverse(a) @ a - a).norm() / a.norm())
            for n in ITERATIONS
        ],
    )


def flops(lengths: Sequence[int]) -> dict[str, float]:
    """The exponent of the multiplications of a forward in the length of its rows."""
    sizes: dict[str, Any] = {"d": 16, "depth": 1, "heads": 1}
    with torch.random.fork_rng(devices=[]):
        dense = [cost(bert(**sizes, length=n), 1, n).flops for n in lengths]
        few = [cost(nystromformer(**sizes, landmarks=USUAL, length=n), 1, n).flops for n in lengths]
    return {"bert": slope(lengths, dense), "nystromformer": slope(lengths, few)}


def claim(
    seeds: Sequence[int], steps: int = STEPS, landmarks: Sequence[int] = LANDMARKS, lengths: Sequence[int] = LONG
) -> Claim:
    """Compare sorting by bert and nystromformer, the landmark error of bert's layers, and the cost by length.

    Thresholds, fixed before these were measured: on par is nine tenths of the right answers; more landmarks are nearer,
    so the exponent of the error is below 0; six iterations suffice if they add a twentieth to the error at most; linear
    is an exponent of at most 1.1, while pairs of tokens have 2. In post-norm layers A is nearly singular, and its exact
    inverse reads worse than six iterations do. So the residual of A itself is measured too, at most a tenth.
    """
    data = TaskData.from_task("sorting", TASK)
    models = [train_both(seed, data, steps) for seed in seeds]
    runs = [_mean([measure_errors(run, landmarks) for run in heads(model, tokens_of(data))]) for model, _, _ in models]
    exponents = flops(lengths)
    of_right = [few / dense for _, dense, few in models]
    measures = (
        Measure(f"right answers with {USUAL} landmarks, over those of softmax", of_right, "least", 0.9, no_effect=0.0),
        Measure("exponent of the error in the landmarks", [slope(landmarks, run.error) for run in runs], "most", 0.0),
        Measure("error of six iterations over that of the inverse itself", [run.stopped for run in runs], "most", 1.05),
        Measure(
            "|A Z A - A| / |A| after six iterations", [run.left[SIX] for run in runs], "most", INVERTED, no_effect=1.0
        ),
        Measure("exponent of multiplications in the row", [exponents["nystromformer"]], "most", 1.1),
    )
    every = _mean(runs)
    facts = {
        f"right answers after {steps} steps of {TASK}": ", ".join(
            f"{few:.3f} of {dense:.3f}" for _, dense, few in models
        ),
        "error by landmarks, 1 being a plain mean": _format_errors(landmarks, every.error),
        "error of the best matrix of that rank": _format_errors(landmarks, every.best),
        "|AZA - A| / |A| by iterations": _format_errors(ITERATIONS, every.left),
        "exponent of multiplications in the row, bert": f"{exponents['bert']:.3f}",
    }
    lines = [
        *(PlotLine(landmarks, run.error, "Nystrom", "o-", "tab:blue") for run in runs),
        *(PlotLine(landmarks, run.best, "best of that rank", "s--", "tab:gray") for run in runs),
    ]
    errors = Plot(
        "error of trained layers",
        "landmarks, or rank",
        "away from softmax attention",
        lines,
        levels=((1, "a plain mean"),),
        log="xy",
        ticks=landmarks,
    )
    lines = [PlotLine(ITERATIONS, run.left, "", "o-", "tab:blue") for run in runs]
    inverse = Plot("the inverse", "iterations", "|A Z A - A| / |A|", lines, log="y", ticks=ITERATIONS)
    return Claim(SAYS, SOURCE, measures, facts, (errors, inverse))


def _mean(runs: Sequence[ApproximationErrors]) -> ApproximationErrors:
    def by_place(name: str) -> list[float]:
        return [mean(same) for same in zip(*(getattr(run, name) for run in runs), strict=True)]

    return ApproximationErrors(by_place("error"), by_place("best"), mean(run.stopped for run in runs), by_place("left"))


def _format_errors(at: Sequence[int], values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2g} of {n}" for n, value in zip(at, values, strict=True))
