"""Heads of a DA-Transformer specialise in near or in far tokens if a task needs both."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from numpy.random import Generator
from torch import Tensor, nn

from kinformer.core.batch import TokenBatch
from kinformer.core.heads import Keys, Queries
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.scores.product import Product
from kinformer.core.task import LETTERS, Task, TaskRow
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.task import TaskData, of_form
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.train.fit import fit
from kinformer.members.da_transformer import da_transformer
from kinformer.models.mlm import MLM
from kinformer.nn.biases.distance_aware import DistanceAware

KINDS, FAR, NOISE, NEAR = 4, 3, 18, 3  # kinds of letters; letters of the three parts of a row
SIZES: dict[str, Any] = {"d": 32, "depth": 1, "heads": 4}
STEPS, ROWS, RATE, TRIED = 1500, 32, 3e-3, 1024
MINUTES = 1.2
EXACT, LEARNT, APART = 1e-6, 0.95, 0.2
DISTANCES = (*range(30), 100, 1000, 10**6)  # of the function f that is checked
SIGNS = {"local": -1, "global": 1}  # sign of alpha
SAYS = "the learned distances of heads separate local from global heads, and are bounded as the paper says"
SOURCE = "Wu et al., 2021, arXiv:2010.06925, section 3 (bounds of f) and its figures of learned weights"


@dataclass(frozen=True)
class NearAndFar(Task):
    """A row of letters with an answer at its end that depends on the nearest and on the farthest letters.

    The row begins with copies of one letter, goes on with other letters, and ends with copies of another letter. The
    answer is a symbol for the pair of the first and the last letter. Every letter occurs equally often in a row, so
    only distances tell the letters apart. Guessing scores 1 / kinds^2.
    """

    @property
    def width(self) -> int:
        return FAR + NOISE + NEAR + 1

    @property
    def chance_accuracy(self) -> float:
        return 1 / KINDS**2

    def row(self, rng: Generator) -> TaskRow:
        far, near = (int(kind) for kind in rng.integers(KINDS, size=2))
        first, last = LETTERS[far : far + 1] * FAR, LETTERS[near : near + 1] * NEAR
        others = list(LETTERS[:KINDS] * ((FAR + NOISE + NEAR) // KINDS))
        for letter in first + last:
            others.remove(letter)
        return TaskRow([(first + bytes(rng.permutation(others).tolist()) + last, answer_symbol(far, near))])


def answer_symbol(far: int, near: int) -> bytes:
    """Return the symbol of a pair of letters.

    far, near: kinds of the first and of the last letter.
    """
    place = KINDS + KINDS * far + near  # after the letters of questions
    return LETTERS[place : place + 1]


class PairAccuracy(NamedTuple):
    """Shares of correct answers of a model.

    both: both letters are correct.
    near: the nearest letter is correct.
    far: the farthest letter is correct.
    """

    both: float
    near: float
    far: float


@torch.no_grad()
def measure_accuracy(model: MLM, rows: TokenBatch) -> PairAccuracy:
    """Return the shares of correct answers, and of correct letters in them.

    model: trained model.
    rows: rows of `NearAndFar`.
    """
    read, _ = model.mask_batch(rows, fixed=True)
    symbols = list(LETTERS[KINDS : KINDS + KINDS**2])
    predicted = model.eval().logits(read).y[:, -1, symbols].argmax(-1)
    expected = torch.tensor([symbols.index(int(token)) for token in rows.tokens[:, -1]])
    far, near = predicted // KINDS == expected // KINDS, predicted % KINDS == expected % KINDS
    return PairAccuracy(*(float(right.double().mean()) for right in (far & near, near, far)))


def distance_factors(bias: DistanceAware, distances: Sequence[int]) -> Float[Tensor, "H N"]:
    """Return f of each head and distance, as the bias applies it to a score of 1 in float64.

    bias: the part of a model.
    distances: distances of query and key.
    """
    heads = len(bias.alpha)
    ones = torch.ones(1, heads, len(distances), 1, dtype=torch.float64)
    keys = Keys(ones, ones, torch.tensor(distances)[None, None])
    score = bias.bind(Request(Queries(ones[:, :, :1], torch.tensor([[[0]]])), keys, Full(), Product()))
    zero, h, j = torch.zeros(1, dtype=torch.long), torch.arange(heads)[:, None], torch.arange(len(distances))[None]
    return score(torch.ones(heads, len(distances), dtype=torch.float64), zero, h, zero, j).detach()


class FunctionErrors(NamedTuple):
    """Deviations of the function f of a model from its properties in the paper.

    start: largest distance of f(0) from 1.
    backwards: largest step of f against its direction, from a distance to the next.
    excess: largest value of f divided by its bound 1 + e^beta.
    """

    start: float
    backwards: float
    excess: float


def function_errors(bias: DistanceAware) -> FunctionErrors:
    """Return how far the function f of a layer's heads is from the paper's properties.

    bias: the part of a trained model.
    """
    factors = distance_factors(bias, DISTANCES)
    direction = bias.alpha.detach().sign()[:, None]
    return FunctionErrors(
        float((factors[:, 0] - 1).abs().max()),
        max(0.0, float((-factors.diff(dim=1) * direction).max())),
        float((factors / (1 + bias.beta.detach().double().exp())[:, None]).max()),
    )


def distance_part(model: nn.Module) -> DistanceAware:
    """Return the distance-aware part of a model with one layer.

    model: the model.
    """
    return next(part for part in model.modules() if isinstance(part, DistanceAware))


@contextmanager
def without_distances(bias: DistanceAware, sign: int) -> Iterator[None]:
    """Set alpha of the heads with a sign to 0 inside a `with` block.

    These heads then attend without distances.

    bias: the part of a trained model.
    sign: -1 for heads that weaken far keys, 1 for heads that strengthen them.
    """
    learned = bias.alpha.data
    bias.alpha.data = torch.where(learned.sign() == sign, 0.0, learned)
    try:
        yield
    finally:
        bias.alpha.data = learned


class RangeResult(NamedTuple):
    """Measurements of a DA-Transformer that was trained on `NearAndFar`.

    alpha: alpha of each head.
    factors: f of each head, for the distances of a row.
    errors: deviations of f from its properties.
    whole: accuracy of the model.
    cut: accuracy without the distances of local heads, and of global heads.
    """

    alpha: list[float]
    factors: list[list[float]]
    errors: FunctionErrors
    whole: PairAccuracy
    cut: dict[str, PairAccuracy]

    @property
    def near_loss(self) -> float:
        """Accuracy that near letters lose without local heads, minus the accuracy that far letters lose."""
        return (self.whole.near - self.cut["local"].near) - (self.whole.far - self.cut["local"].far)

    @property
    def far_loss(self) -> float:
        """Accuracy that far letters lose without global heads, minus the accuracy that near letters lose."""
        return (self.whole.far - self.cut["global"].far) - (self.whole.near - self.cut["global"].near)


def train_and_measure(seed: int, steps: int) -> RangeResult:
    """Train a DA-Transformer on `NearAndFar`, and measure its heads on test rows.

    seed: seed of the weights and of the training.
    steps: number of training steps.
    """
    task = TaskData.from_task("near_and_far", NearAndFar())
    with seeded(seed):
        model = da_transformer(**SIZES)
        fit(model, task, steps=steps, batch=ROWS, lr=RATE, seed=seed, valid_bytes=1024)
    rows = cast(TokenBatch, of_form(task.test.rows(TRIED), model.reads))
    bias, cut = distance_part(model), {}
    for name, sign in SIGNS.items():
        with without_distances(bias, sign):
            cut[name] = measure_accuracy(model, rows)
    factors = distance_factors(bias, range(NearAndFar().width)).tolist()
    return RangeResult(bias.alpha.tolist(), factors, function_errors(bias), measure_accuracy(model, rows), cut)


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train a DA-Transformer on answers that need near and far letters, and measure what its heads learn.

    A row has copies of a letter at its beginning, copies of another letter at its end, and other letters between. An
    answer names both letters. The model has one layer with 4 heads and no positions. A head with alpha < 0 is called
    local, because it weakens far keys, and a head with alpha > 0 is called global.

    The claim holds if eight conditions are met. Three are about f with the learned numbers, each within 1e-6: f(0) = 1,
    no step of f goes against the sign of alpha, and f is at most 1 + e^beta. At least 0.95 of the answers are correct.
    The smallest alpha of a layer is below 0 and the largest is above 0, by more than two standard errors over the
    seeds. If alpha of the local heads is set to 0, near letters lose at least 0.2 more accuracy than far letters. If
    alpha of the global heads is set to 0, far letters lose at least 0.2 more accuracy than near letters.

    Equal counts of all letters matter. With random letters between, one of three models counted letters in place of
    learning a local head.

    The paper classifies texts (AG, Amazon, SST, MIND) and infers relations of sentences (SNLI). It shows weights of
    heads that learned local and global attention.

    seeds: seeds of the trainings.
    steps: number of training steps.
    """
    runs = [train_and_measure(seed, steps) for seed in seeds]
    measures = (
        Measure("largest distance of f(0) from 1", [run.errors.start for run in runs], "most", EXACT),
        Measure("largest step of f against its direction", [run.errors.backwards for run in runs], "most", EXACT),
        Measure("largest f, divided by 1 + e^beta, minus 1", [run.errors.excess - 1 for run in runs], "most", EXACT),
        Measure(
            "share of correct answers",
            [run.whole.both for run in runs],
            "least",
            LEARNT,
            no_effect=NearAndFar().chance_accuracy,
        ),
        Measure("smallest alpha", [min(run.alpha) for run in runs], "most", 0),
        Measure("largest alpha", [max(run.alpha) for run in runs], "least", 0),
        Measure(
            "accuracy that near letters lose more than far letters without local heads",
            [run.near_loss for run in runs],
            "least",
            APART,
            no_effect=0,
        ),
        Measure(
            "accuracy that far letters lose more than near letters without global heads",
            [run.far_loss for run in runs],
            "least",
            APART,
            no_effect=0,
        ),
    )
    facts = {
        "alpha of the heads by seed": "; ".join(
            ", ".join(f"{alpha:.3f}" for alpha in sorted(run.alpha)) for run in runs
        ),
        "accuracy of near and far letters": _accuracies([run.whole for run in runs]),
        **{
            f"accuracy of near and far letters without {name} heads": _accuracies([run.cut[name] for run in runs])
            for name in SIGNS
        },
        "accuracy by guessing": f"{1 / KINDS:g} for a letter",
        "steps of training": f"{steps} of {ROWS} rows of {NearAndFar().width} letters",
    }
    return Claim(SAYS, SOURCE, measures, facts, _plots(runs))


def _accuracies(results: Sequence[PairAccuracy]) -> str:
    return f"{mean(result.near for result in results):.3f} and {mean(result.far for result in results):.3f}"


def _plots(runs: Sequence[RangeResult]) -> tuple[Plot, Plot]:
    curves = [
        PlotLine(range(len(factors)), factors, f"{name} heads", "-", colour, 0.7)
        for run in runs
        for alpha, factors in zip(run.alpha, run.factors, strict=True)
        for name, colour in [("local", "tab:blue") if alpha < 0 else ("global", "tab:orange")]
    ]
    heads = Plot("learned function of the distance", "distance", "factor f of a score", curves, ylim=(0, None))
    samples = {
        letters: [[getattr(result, letters) for result in of] for of in _arms(runs).values()]
        for letters in ("near", "far")
    }
    cut = Plot(
        "correct letters",
        ylabel="share of correct letters",
        samples=samples,
        categories=list(_arms(runs)),
        levels=((1 / KINDS, "guessing"),),
        ylim=(0, 1.05),
    )
    return heads, cut


def _arms(runs: Sequence[RangeResult]) -> dict[str, list[PairAccuracy]]:
    arms = {"all heads": [run.whole for run in runs]}
    return arms | {f"without {name}": [run.cut[name] for run in runs] for name in SIGNS}
