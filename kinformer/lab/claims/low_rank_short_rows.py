"""Narrow queries and keys classify short rows better than wide ones, if there are few examples."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import torch

from kinformer.core.batch import TokenBatch
from kinformer.core.eval_mode import evaluating
from kinformer.core.model import ACCURACY
from kinformer.lab.claims.support.byte_models import describe_values
from kinformer.lab.claims.support.claim_models import mean_metric, seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.task import TaskData, of_form
from kinformer.lab.plot import Plot, PlotLine, seed_mean
from kinformer.lab.tasks.listops import Listops
from kinformer.lab.train.fit import fit
from kinformer.members.low_rank_band import low_rank_band

TASK = Listops(shortest=8, longest=16)
RANKS, NARROW, WIDE = (2, 4, 8, 16, 32, 64), 8, 64  # widths of queries and keys; half of a row is 8
STEPS, ROWS, RATE, LEARNED, JUDGED = 300, 32, 3e-3, 512, 512  # LEARNED, JUDGED: rows to learn from and to test on
MINUTES = 2.6  # of a default run with three seeds
SIZES: dict[str, Any] = {
    **{"form": "encoder", "d": 64, "depth": 2, "heads": 2, "head_dim": 32},
    **{"window": 0, "length": TASK.width},
}
SAYS = "on short rows and few examples, queries and keys of width 8 classify better than ones of width 64"
SOURCE = (
    "Lin et al., 2021, arXiv:2106.04554 (low-rank parameterization); Guo et al., 2019, doi:10.1109/TASLP.2019.2944078"
)
SCALE = (
    "The survey argues that a width above the length of short inputs over-fits, and gives no number. Guo et al. use "
    "narrow heads beside a window on text classification and inference"
)


class ShortRowRun(NamedTuple):
    """Accuracies of a trained classifier of short rows.

    test: share of correct classes of rows that were not in training.
    train: share of correct classes of the rows in training.
    """

    test: float
    train: float


def split_rows(seed: int) -> tuple[TokenBatch, TokenBatch]:
    """Return the rows that a model learns from, and the rows that it is tested on.

    seed: seed of both draws.
    """
    task = TaskData.from_task("listops", TASK)
    learned, judged = (
        of_form(split.rows(count, seed), "masked") for split, count in ((task.train, LEARNED), (task.valid, JUDGED))
    )
    assert isinstance(learned, TokenBatch) and isinstance(judged, TokenBatch)
    return learned, judged


def train_classifier(rank: int, seed: int, steps: int) -> ShortRowRun:
    """Train an encoder on 512 short rows, and measure its accuracy on them and on other rows.

    rank: width of queries and keys.
    seed: seed of the weights, the rows and the batches.
    steps: number of training steps.
    """
    learned, judged = split_rows(seed)

    def draw_batch(step: int) -> TokenBatch:
        rows = torch.from_numpy(numpy.random.default_rng((seed, step)).integers(len(learned.tokens), size=ROWS))
        return TokenBatch(learned.tokens[rows], None if learned.scored is None else learned.scored[rows])

    with seeded(seed):
        model = low_rank_band(**SIZES, rank=rank)
        fit(model, draw_batch, steps=steps, lr=RATE, seed=seed, measures=1, valid=[judged])
    with evaluating(model):
        return ShortRowRun(*(mean_metric(model, rows, ACCURACY.name) for rows in (judged, learned)))


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Compare widths of queries and keys from 2 to 64 in a classifier of short rows with few examples.

    A row is a ListOps expression of at most 16 symbols, and its value is one of 10 classes. The models are encoders
    `low_rank_band` whose window holds only the token itself, so that all attention between tokens has queries and keys
    of the given width. Values keep their width. All models learn from the same 512 rows, in equal batches and steps.
    The claim holds if the accuracy on other rows is higher with width 8, half the length of a row, than with width 64,
    by more than two standard errors. It does not hold if it is lower by more than two standard errors. The other
    widths are reported.

    Measured with three seeds, the claim is not resolved: accuracies on other rows lie between 0.35 and 0.40 for all
    widths, and seeds of one width differ by up to 0.19. No width fits the training rows fully after 300 steps, so wide
    ones have little chance to over-fit.

    Narrow queries and keys have fewer weights, which is the point of the claim.

    seeds: seeds of the weights, rows and trainings.
    steps: number of training steps.
    """
    runs = {rank: [train_classifier(rank, seed, steps) for seed in seeds] for rank in RANKS}
    test = {rank: [run.test for run in of] for rank, of in runs.items()}
    train = {rank: [run.train for run in of] for rank, of in runs.items()}
    measures = (
        Measure(
            f"accuracy on other rows, width {NARROW} minus width {WIDE}",
            [narrow - wide for narrow, wide in zip(test[NARROW], test[WIDE], strict=True)],
            "least",
            0,
        ),
    )
    facts = {f"accuracy on other rows, width {rank}": describe_values(test[rank]) for rank in RANKS}
    facts |= {f"accuracy on rows of the training, width {rank}": describe_values(train[rank]) for rank in RANKS}
    facts |= {
        f"weights, width {rank}": f"{sum(x.numel() for x in low_rank_band(**SIZES, rank=rank).parameters()):,}"
        for rank in (NARROW, WIDE)
    }
    facts["accuracy of guessing"] = f"{TASK.chance_accuracy:.3f}"
    facts["training"] = f"{steps} steps of {ROWS} of {LEARNED} rows, learning rate {RATE:g}"
    facts["the paper's scale"] = SCALE
    lines = []
    for number, (name, shares) in enumerate((("other rows", test), ("rows of the training", train))):
        by_seed = list(zip(*shares.values(), strict=True))
        lines += [PlotLine(RANKS, values, "", "-", f"C{number}", 0.3) for values in by_seed]
        lines.append(PlotLine(RANKS, seed_mean(by_seed), name, "o-", f"C{number}"))
    plot = Plot(
        f"{LEARNED} rows of at most {TASK.longest} symbols",
        "width of queries and keys",
        "accuracy",
        lines,
        levels=((TASK.chance_accuracy, "guessing"),),
        log="x",
        ticks=RANKS,
        ylim=(0, 1.05),
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
