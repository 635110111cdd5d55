"""Improved clustered attention approximates dense attention at least as well as the plain form."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.model import ACCURACY
from kinformer.lab.claims.support.claim_models import heads, mean_metric, seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.task import TaskData, of_form
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.tasks.sorting import Sorting
from kinformer.lab.train.fit import fit
from kinformer.lab.train.training_stages import carry_weights
from kinformer.members.bert import bert
from kinformer.members.clustered_transformer import clustered_transformer
from kinformer.models.mlm import MLM
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.clustered_improved import ImprovedClustered
from kinformer.nn.mechanisms.hamming_kmeans import HammingKMeans

CLUSTERS, TOPK, LENGTH, WIDTH, ROWS = (4, 8, 16, 32, 64), 8, 128, 16, 16
TASK, STEPS = Sorting(length=48, symbols=12), 200
MINUTES = 1  # of a default run with three seeds
SIZES: dict[str, Any] = {"d": 4 * WIDTH, "depth": 2, "heads": 4, "norm": "pre", "length": 128}
FORMS: dict[str, dict[str, Any]] = {"plain": {"form": "plain"}, "improved": {"form": "improved", "topk": TOPK}}
ROUNDING = 1e-10  # tolerance for float64 sums; the theorem's bound is 0
SAYS = (
    "improved clustered attention is never further from dense attention than the plain form, "
    "and more clusters bring both nearer"
)
SOURCE = "Vyas et al., 2020, arXiv:2007.04825, section 3.3 (a theorem) and 4.3 (25 clusters approximate RoBERTa)"
Pair = tuple[Tensor, Tensor]  # queries and keys [B, H, T, K]
Errors = dict[str, list[Tensor]]  # for each form, one tensor per number of clusters: errors of all attention rows


def errors(q: Float[Tensor, "B H T K"], k: Float[Tensor, "B H T K"], clusters: Sequence[int], seed: int) -> Errors:
    """Return the errors of plain and improved clustered attention, by form and number of clusters.

    The error of a query is the sum of absolute differences of its attention weights from dense attention: 0 if equal,
    at most 2.

    q: queries.
    k: keys.
    clusters: numbers of clusters to try.
    seed: seed of the clustering.
    """
    exact = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    ctx = Context(torch.arange(q.shape[2]).expand(len(q), -1), run=True, full=True)
    # with one-hot values the output is the row of attention weights
    eye = torch.eye(q.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)
    sums: Errors = {form: [] for form in FORMS}
    for count in clusters:
        means = HammingKMeans(q.shape[3], count, seed=seed)
        for form, part in (("plain", Clustered(means)), ("improved", ImprovedClustered(means, TOPK))):
            rows = part.eval()(Queries(q, ctx.by_head), Keys(k, eye, ctx.by_head), None, ctx).y.y
            sums[form].append((rows - exact).abs().sum(-1).flatten())
    return sums


def random_heads(seed: int, length: int) -> list[Pair]:
    """Return a list with one pair: queries and keys of normally distributed numbers.

    seed: seed of the numbers.
    length: number of tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(2, ROWS, 2, length, WIDTH, generator=generator, dtype=torch.float64)
    return [(normal[0], normal[1])]


def train_bert(seed: int, data: TaskData, steps: int) -> tuple[MLM, TokenBatch]:
    """Train a `bert` briefly on a task, and return it with rows that it has not seen.

    seed: seed of the weights and of the training.
    data: task to learn.
    steps: number of training steps; 0 leaves the model untrained.
    """
    with seeded(seed):
        model = bert(**SIZES)
        if steps:
            fit(model, data, steps=steps, lr=3e-3, seed=seed)
    rows = of_form(data.valid.rows(ROWS), model.reads)
    assert isinstance(rows, TokenBatch)
    return model.eval(), rows


def asked_of(model: MLM, rows: TokenBatch) -> list[Pair]:
    """Return the queries and keys of each attention layer of a model, for rows with masked answers.

    model: model with attention layers.
    rows: rows of a task; the answers are masked before the call.
    """
    return [(q.double(), k.double()) for q, k, _ in heads(model, model.mask_batch(rows, fixed=True)[0])]


def answer_accuracy(model: MLM, rows: TokenBatch) -> float:
    """Return the share of masked answer tokens that a model predicts correctly.

    model: model to evaluate.
    rows: rows of a task.
    """
    return mean_metric(model, rows, ACCURACY.name)


def accuracy_by_form(model: MLM, rows: TokenBatch) -> list[float]:
    """Return the accuracy of a `bert` with dense, plain clustered and improved clustered attention.

    Both clustered forms have the weights of the `bert` and 25 clusters.

    model: trained `bert`.
    rows: rows of a task.
    """
    shares = [answer_accuracy(model, rows)]
    for form in FORMS.values():
        other = clustered_transformer(**form, **SIZES)
        carry_weights(model, other)
        shares.append(answer_accuracy(other.eval(), rows))
    return shares


def claim(seeds: Sequence[int], clusters: Sequence[int] = CLUSTERS, length: int = LENGTH, steps: int = STEPS) -> Claim:
    """Compare plain and improved clustered attention with dense attention, for random and trained heads.

    The error of a query is the sum of absolute differences of its attention weights from dense attention. The claim
    holds if two conditions are met. For no query does the improved form have a larger error than the plain form, up to
    1e-10. At each doubling of the number of clusters the mean error falls, for both forms. The accuracy of a `bert`
    with 25 clusters does not affect the verdict.

    seeds: seeds of the inputs, the trainings and the clustering.
    clusters: numbers of clusters, each twice the one before.
    length: tokens of the random rows.
    steps: number of training steps of each `bert`.
    """
    data = TaskData.from_task("sorting", TASK)
    models = [train_bert(seed, data, steps) for seed in seeds]
    inputs = {"random": [random_heads(seed, length) for seed in seeds], "trained": [asked_of(*run) for run in models]}
    measures: list[Measure] = []
    means: dict[str, list[float]] = {}
    for kind, by_seed in inputs.items():
        errors_by_seed = [_errors(pairs, clusters, seed) for seed, pairs in zip(seeds, by_seed, strict=True)]
        worse = [
            max(float((b - a).max()) for a, b in zip(run["plain"], run["improved"], strict=True))
            for run in errors_by_seed
        ]
        measures.append(
            Measure(f"{kind} attention: improved error minus plain error, largest of all rows", worse, "most", ROUNDING)
        )
        for form in FORMS:
            each = [[float(error.mean()) for error in run[form]] for run in errors_by_seed]
            means[f"{kind}, {form}"] = [mean(run) for run in zip(*each, strict=True)]
            falls = [max(b / a for a, b in zip(run, run[1:], strict=False)) for run in each]
            measures.append(
                Measure(
                    f"{kind} attention, {form} form: error divided by the error with half the clusters, largest",
                    falls,
                    "most",
                    1.0,
                )
            )
    facts = {f"mean error, {name}": _format_errors(clusters, errors_by_seed) for name, errors_by_seed in means.items()}
    whole, plain, improved = (mean(run) for run in zip(*(accuracy_by_form(*run) for run in models), strict=True))
    facts[f"accuracy of a bert after {steps} steps of {TASK}"] = (
        f"{whole:.3f}; the same weights with 25 clusters {plain:.3f} in the plain form, "
        f"{improved:.3f} in the improved form with {TOPK} keys"
    )
    lines = []
    for name, y in means.items():
        style, colour = "s--" if "improved" in name else "o-", "tab:orange" if "trained" in name else "tab:blue"
        lines.append(PlotLine(clusters, y, name, style, colour))
    plot = Plot(
        "error of an attention row",
        "clusters",
        "sum of absolute differences",
        lines,
        log="x",
        ticks=clusters,
        ylim=(0, None),
    )
    return Claim(SAYS, SOURCE, tuple(measures), facts, (plot,))


def _errors(pairs: list[Pair], clusters: Sequence[int], seed: int) -> Errors:
    """Concatenate the errors of all layers."""
    by_layer = [errors(*pair, clusters, seed) for pair in pairs]
    return {
        form: [torch.cat(same) for same in zip(*(layer[form] for layer in by_layer), strict=True)] for form in FORMS
    }


def _format_errors(clusters: Sequence[int], values: Sequence[float]) -> str:
    return ", ".join(f"{error:.3f} with {count}" for count, error in zip(clusters, values, strict=True)) + " clusters"
