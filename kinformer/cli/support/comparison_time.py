"""Announcement of the number of trainings of a comparison and of the time that they take."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kinformer.cli.support.member_results import CURVES
from kinformer.cli.support.training import Job
from kinformer.cli.support.trials import Trial
from kinformer.lab.compare.step_time import step_seconds
from kinformer.lab.data.text import TextData
from kinformer.lab.train.budget import MinuteBudget, StepBudget
from kinformer.lab.train.member_fit import longest_row
from kinformer.lab.train.progress import clock

FOR_SAMPLE = 3.0  # seconds to load a model, write its sample and draw its curves, on two cores
EVALUATED = 0.5  # time to evaluate a token, as a fraction of the time to learn from it


def tell_plan(trials: Sequence[Trial], models: Mapping[str, Any], split: str) -> None:
    """Print on stderr how many trainings are left, and how long they and their measurements take.

    trials: the trainings that are not finished.
    models: the untrained model of each member, by title; the time of a step is measured with it.
    split: the split whose metric is reported.
    """
    first = {trial.member: trial.job for trial in reversed(trials)}
    speeds = {title: _token_seconds(models[title], job) for title, job in first.items()}
    training = [_training_seconds(trial.job, speeds[trial.member]) for trial in trials]
    evaluating = [_evaluation_seconds(trial.job, speeds[trial.member]) for trial in trials]
    count = len(trials)
    text = f"{count:,} training{'s' if count > 1 else ''} of {_budget_text(trials)}"
    if None in training or None in evaluating:
        print(f"{text}; how long they take depends on the environment", file=sys.stderr)
        return
    during = sum(trial.job.settings.measures * each for trial, each in zip(trials, evaluating, strict=True) if each)
    reported = {trial.member: n for n, trial in enumerate(trials)}.values()  # one training of each member
    after = sum(FOR_SAMPLE + CURVES * (training[n] or 0.0) for n in reported)
    after += sum(evaluating[n] or 0.0 for n in reported) if split == "test" else 0.0
    print(
        f"{text}: {clock(sum(filter(None, training)))} in all. Measuring adds about {clock(during)} during training "
        f"and {clock(after)} at the end",
        file=sys.stderr,
    )


def _budget_text(trials: Sequence[Trial]) -> str:
    """The budget of each training in words; trainings with the same operations have different numbers of steps."""
    budgets = [trial.job.budget for trial in trials]
    counts = sorted({budget.count for budget in budgets if isinstance(budget, MinuteBudget | StepBudget)})
    unit = ("minute" if isinstance(budgets[0], MinuteBudget) else "step") + "s" * (counts != [1])
    return " to ".join(f"{count:,g}" for count in dict.fromkeys((counts[0], counts[-1]))) + f" {unit} each"


def _token_seconds(model: Any, job: Job) -> float | None:
    """The seconds to learn from a token; None if the steps of an environment decide them."""
    if job.data.lends:
        return None
    length = longest_row(job.data, job.settings)
    return step_seconds(model, job.settings.batch, length, job.settings.precision) / (job.settings.batch * length)


def _training_seconds(job: Job, token: float | None) -> float | None:
    if isinstance(job.budget, MinuteBudget):
        return 60 * job.budget.count
    assert isinstance(job.budget, StepBudget)
    return (
        None if token is None else job.budget.count * job.settings.batch * longest_row(job.data, job.settings) * token
    )


def _evaluation_seconds(job: Job, token: float | None) -> float | None:
    size = job.valid_bytes if isinstance(job.data, TextData) else job.settings.sample_bytes
    return None if token is None else EVALUATED * size * token
