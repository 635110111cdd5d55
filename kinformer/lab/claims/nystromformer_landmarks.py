"""Nystromformer is nearly as accurate as softmax attention, at a cost linear in the row."""

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
LONG = (1024, 2048, 4096)  # tokens of the rows for counting cost
TASK, STEPS, BATCH, ROWS = Sorting(length=48, symbols=12), 400, 8, 16
MINUTES = 2.5  # of a default run with three seeds
SIX, INVERTED = ITERATIONS.index(6), 0.1  # largest |A Z A - A| / |A|, which is 0 for the exact inverse
SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": 4, "length": 128}
SAYS = (
    "attention through landmarks is on par with softmax attention, at a linear cost, with six iterations of its inverse"
)
SOURCE = "Xiong et al., 2021, arXiv:2102.03902, abstract and section 3"


class ApproximationErrors(NamedTuple):
    """Errors of Nystrom attention, compared with the softmax attention of a trained model.

    A is the matrix of attention between landmarks, and Z is its inverse, approximated by iterations.

    error: error of Nystrom attention for each number of landmarks. It is divided by the error of the mean of all
        values, so 1 means no better than this mean.
    best: smallest possible error of matrices of equally low rank, divided by the same.
    stopped: error after six iterations divided by the error with the exact pseudo-inverse.
    left: residual |A Z A - A| / |A| for each number of iterations.
    """

    error: list[float]
    best: list[float]
    stopped: float
    left: list[float]


class ExactNystrom(Nystrom):
    """Nystrom attention with the exact pseudo-inverse, from a singular value decomposition."""

    def approximate_inverse(self, a: Float[Tensor, "B H M N"]) -> Float[Tensor, "B H N M"]:
        return torch.linalg.pinv(a)


def train_and_test(model: MLM, seed: int, data: TaskData, steps: int) -> float:
    """Train a model briefly on a task and return its accuracy on unseen rows.

    model: model to train.
    seed: seed of the training.
    data: task to learn.
    steps: number of training steps; 0 leaves the model untrained.
    """
    if steps:
        fit(model, data, steps=steps, batch=BATCH, lr=3e-3, seed=seed)
    rows = of_form(data.valid.rows(4 * ROWS), model.reads)
    return mean_metric(model.eval(), rows, ACCURACY.name)


def train_both(seed: int, data: TaskData, steps: int) -> tuple[MLM, float, float]:
    """Train a `bert` and a `nystromformer` of equal size on a task; return the `bert` and both accuracies.

    seed: seed of the weights and of the trainings.
    data: task to learn.
    steps: number of training steps.
    """
    with seeded(seed):
        dense, few = bert(**SIZES), nystromformer(**SIZES, landmarks=USUAL)
        return dense, train_and_test(dense, seed, data, steps), train_and_test(few, seed, data, steps)


def tokens_of(data: TaskData) -> Int[Tensor, "B T"]:
    """Return validation rows of a task as tokens, with visible answers.

    data: task.
    """
    rows = of_form(data.valid.rows(ROWS), "masked")
    assert isinstance(rows, TokenBatch)
    return rows.tokens


def measure_errors(layer: HeadInputs, landmarks: Sequence[int]) -> ApproximationErrors:
    """Return the errors of Nystrom attention, and of other approximations, in one layer.

    layer: queries, keys and values of the layer.
    landmarks: numbers of landmarks to try.
    """
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
    """Return the growth exponents of the multiplications of `bert` and `nystromformer` in the row length.

    lengths: tokens per row of the forward passes.
    """
    sizes: dict[str, Any] = {"d": 16, "depth": 1, "heads": 1}
    with torch.random.fork_rng(devices=[]):
        dense = [cost(bert(**sizes, length=n), 1, n).flops for n in lengths]
        few = [cost(nystromformer(**sizes, landmarks=USUAL, length=n), 1, n).flops for n in lengths]
    return {"bert": slope(lengths, dense), "nystromformer": slope(lengths, few)}


def claim(
    seeds: Sequence[int], steps: int = STEPS, landmarks: Sequence[int] = LANDMARKS, lengths: Sequence[int] = LONG
) -> Claim:
    """Compare sorting accuracy, approximation error and multiplications of softmax and Nystrom attention.

    Nystrom attention uses the matrix A of attention between landmarks (means of tokens), and approximates its inverse Z
    by iterations. The claim holds if five conditions are met. The accuracy with 32 landmarks is at least nine tenths of
    the accuracy with softmax attention. The error falls with more landmarks: its exponent in their number is below 0.
    Six iterations raise the error by at most a twentieth over the exact inverse. The residual |A Z A - A| / |A| after
    six iterations is at most a tenth. Multiplications grow with an exponent of at most 1.1 in the row length; the
    number of token pairs has an exponent of 2.

    In post-norm layers A is nearly singular, and its exact inverse gives worse attention than six iterations. The
    residual is therefore measured too.

    seeds: seeds of the trainings.
    steps: number of training steps.
    landmarks: numbers of landmarks.
    lengths: tokens per row for the cost.
    """
    data = TaskData.from_task("sorting", TASK)
    models = [train_both(seed, data, steps) for seed in seeds]
    runs = [_mean([measure_errors(run, landmarks) for run in heads(model, tokens_of(data))]) for model, _, _ in models]
    exponents = flops(lengths)
    of_right = [few / dense for _, dense, few in models]
    measures = (
        Measure(
            f"accuracy with {USUAL} landmarks divided by the accuracy of softmax attention",
            of_right,
            "least",
            0.9,
            no_effect=0.0,
        ),
        Measure(
            "growth exponent of the error in the number of landmarks",
            [slope(landmarks, run.error) for run in runs],
            "most",
            0.0,
        ),
        Measure(
            "error with six iterations divided by the error with the exact inverse",
            [run.stopped for run in runs],
            "most",
            1.05,
        ),
        Measure(
            "|A Z A - A| / |A| after six iterations", [run.left[SIX] for run in runs], "most", INVERTED, no_effect=1.0
        ),
        Measure("growth exponent of multiplications in the row length", [exponents["nystromformer"]], "most", 1.1),
    )
    every = _mean(runs)
    facts = {
        f"accuracy after {steps} steps of {TASK}, nystromformer and bert by seed": ", ".join(
            f"{few:.3f} and {dense:.3f}" for _, dense, few in models
        ),
        "error by landmarks (1 is the error of a plain mean)": _format_errors(landmarks, every.error),
        "error of the best matrix of the same rank": _format_errors(landmarks, every.best),
        "|A Z A - A| / |A| by iterations": _format_errors(ITERATIONS, every.left),
        "growth exponent of multiplications in the row length, bert": f"{exponents['bert']:.3f}",
    }
    lines = [
        *(PlotLine(landmarks, run.error, "Nystrom", "o-", "tab:blue") for run in runs),
        *(PlotLine(landmarks, run.best, "best of the same rank", "s--", "tab:gray") for run in runs),
    ]
    errors = Plot(
        "approximation error of trained layers",
        "landmarks, or rank",
        "error relative to a plain mean",
        lines,
        levels=((1, "plain mean"),),
        log="xy",
        ticks=landmarks,
    )
    lines = [PlotLine(ITERATIONS, run.left, "", "o-", "tab:blue") for run in runs]
    inverse = Plot("residual of the inverse", "iterations", "|A Z A - A| / |A|", lines, log="y", ticks=ITERATIONS)
    return Claim(SAYS, SOURCE, measures, facts, (errors, inverse))


def _mean(runs: Sequence[ApproximationErrors]) -> ApproximationErrors:
    def by_place(name: str) -> list[float]:
        return [mean(same) for same in zip(*(getattr(run, name) for run in runs), strict=True)]

    return ApproximationErrors(by_place("error"), by_place("best"), mean(run.stopped for run in runs), by_place("left"))


def _format_errors(at: Sequence[int], values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2g} with {n}" for n, value in zip(at, values, strict=True))
