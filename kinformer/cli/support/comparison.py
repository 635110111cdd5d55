"""The steps of `kinformer compare`: checks, training in turns, measurements and the report."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from kinformer import __version__
from kinformer.cli.support.member_cost import MemberCost
from kinformer.cli.support.member_results import measure_member
from kinformer.cli.support.memory_limits import refuse_too_large
from kinformer.cli.support.option_checks import PLAN
from kinformer.cli.support.run_folder import ANEW, make_folder, refuse_damaged, refuse_frozen, refuse_occupied
from kinformer.cli.support.training import Job, check_trainable, fit_to_data, tell_split
from kinformer.cli.support.trials import (
    Trial,
    TrialBudget,
    best_trials,
    comparison_plan,
    list_trials,
    resume_job,
    start_comparison,
    train_in_turns,
)
from kinformer.core.model import Model
from kinformer.lab.compare.parameters import match_parameters
from kinformer.lab.compare.samples import TEMPERATURE
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import MemberChoice, titles
from kinformer.lab.train.member_fit import check_readable
from kinformer.lab.train.startup_decisions import Decisions
from kinformer.pages.comparison import save_curves
from kinformer.pages.comparison_results import Results
from kinformer.pages.report import report


@dataclass(frozen=True)
class Comparison:
    """Members and settings of one comparison by `kinformer compare`.

    members: the members (named models) by title.
    job: data and settings, the same for every member.
    spent: the training budget that each member spends.
    rates: the learning rates to try; None stands for the rate that the member sets in its recipe.
    seeds: number of seeds for each member and rate.
    split: the split whose metric is reported; "test" if the best of several learning rates is chosen on validation
        data.
    out: the folder of the comparison.
    changed: the changes of width or depth that give the members about equally many parameters, in words.
    going_on: True if the comparison continues one that an earlier command started.
    """

    members: Mapping[str, MemberChoice]
    job: Job
    spent: TrialBudget
    rates: tuple[float | None, ...]
    seeds: int
    split: str
    out: Path
    changed: Sequence[str] = ()
    going_on: bool = False

    @property
    def plan(self) -> dict[str, Any]:
        """Record for comparison.json of everything that determines the results."""
        return comparison_plan(self.members.items(), self.job, self.spent, rates=self.rates, seeds=self.seeds)

    def resume_if_begun(self, resume: bool) -> "Comparison":
        """Return the comparison, as a continued one if `resume` is true and its folder holds comparison.json.

        resume: whether to continue an earlier comparison; `prepare_comparison` checks that its record agrees.
        """
        return replace(self, going_on=resume and (self.out / PLAN).is_file())


def matched_members(
    choices: Sequence[MemberChoice], job: Job, match: bool
) -> tuple[dict[str, MemberChoice], list[str]]:
    """Fit members to the data, match their parameter counts if `match` is true, and return them by title.

    choices: the members as the user wrote them.
    job: the data and settings; the vocabulary of the data sets the keyword `vocab` of the members.
    match: change the width or depth of the other members so that they have about as many parameters as the first.

    Returns the members by title, and the changes that matched their parameter counts, in words.
    """
    fits, changed = [fit_to_data(choice, job) for choice in choices], list[str]()
    if match:
        fits, changed = match_parameters(fits)
    return dict(zip(titles(fits), fits, strict=True)), changed


def build_models(comparison: Comparison) -> tuple[dict[str, Model], dict[str, Decisions]]:
    """Build the model of each member of a comparison, and check that it can be trained.

    comparison: the members, data and settings.

    Returns the untrained models and their decisions, both by title. Decisions are tested facts about a model that set
    its batches, such as whether its outputs depend on later tokens; there are none if the comparison is resumed.
    Errors: UserError for a member that is too large, does not read the data, has frozen weights or is evaluated by
    another metric.
    """
    settings, models, decisions = comparison.job.settings, {}, {}
    for title, choice in comparison.members.items():
        refuse_too_large(choice, settings.batch, settings.length)
        models[title] = choice.build(settings.seed)
        if comparison.going_on:
            check_readable(choice.text, models[title], comparison.job.data, comparison.job.settings)
        else:
            decisions[title] = check_trainable(choice.text, models[title], comparison.job)
        refuse_frozen(choice.text, models[title], " leave it out, because a comparison trains from scratch")
    metrics = {comparison.job.data.metric(model).name: title for title, model in models.items()}
    if len(metrics) > 1:
        judged = ", ".join(f"{name} ({title})" for name, title in metrics.items())
        raise UserError(
            f"cannot compare by several metrics: got {judged}, expected one metric for all. Compare members that "
            "read the same kind of data, or compare on a task"
        )
    return models, decisions


def prepare_comparison(
    comparison: Comparison, overwrite: bool
) -> tuple[Comparison, dict[str, MemberCost], list[Trial]]:
    """Check a comparison, and fix its measurements and trainings before the first step.

    comparison: the members, data and settings.
    overwrite: whether models in the folder may be replaced.

    Returns the comparison with a fixed size and number of measurements, the cost of each member by title, and the
    trainings. Errors: UserError if a training would fail later, or if the folder holds other models.
    """
    models, decisions = build_models(comparison)
    if comparison.going_on:
        comparison = replace(comparison, job=resume_job(comparison.out, comparison.plan, comparison.job))
    costs = {}
    for title, choice in comparison.members.items():
        print(f"{title}: measuring the cost of a training step ...", file=sys.stderr)
        costs[title] = MemberCost.measure(choice, models[title], comparison.job)
    budgets = [
        comparison.spent.member_budget(choice, costs[title].step_flops) for title, choice in comparison.members.items()
    ]
    if not comparison.going_on:
        comparison = replace(comparison, job=comparison.job.fix_measurements(list(models.values()), budgets))
    members = [(*pair, budget) for pair, budget in zip(comparison.members.items(), budgets, strict=True)]
    every = list_trials(members, comparison.job, comparison.rates, comparison.seeds, comparison.out, decisions)
    if comparison.going_on:
        for trial in every:
            refuse_damaged(trial.folder, ANEW)
    else:
        for trial in every:
            refuse_occupied(trial.folder, models[trial.member], overwrite)
        make_folder(comparison.out)
        start_comparison(comparison.out, comparison.plan, (trial.folder for trial in every))
    return comparison, costs, every


def train_and_measure(comparison: Comparison, costs: Mapping[str, MemberCost], every: Sequence[Trial]) -> Results:
    """Train all members of a comparison, measure each, and write results.json after each one.

    comparison: the comparison that `prepare_comparison` returned.
    costs: the cost of each member by title.
    every: all trainings that `prepare_comparison` returned.

    Returns the results of all members.
    """
    tell_split(comparison.job)
    done, failed = train_in_turns(every)
    results = Results(settings_record(comparison), _levels(comparison), [])
    for title in comparison.members:
        own_trials = [trial for trial in every if trial.member == title]
        best, means = best_trials(own_trials, done, failed)
        print(f"{title}: generating a sample and measuring its speed ...", file=sys.stderr)
        results.members.append(measure_member(best, done, comparison.split, comparison.out, means, costs[title]))
        results.save(comparison.out / "results.json")
    return results


def _levels(comparison: Comparison) -> dict[str, float]:
    """Reference values of the metric, such as the score of guessing; they are the same for all members."""
    settings = comparison.job.settings
    model = next(iter(comparison.members.values())).build(settings.seed)
    return dict(comparison.job.data.levels(model, comparison.split, settings.length, settings.sample_bytes))


def write_report(results: Results, out: Path) -> None:
    """Write the curves.png and report.html of a comparison.

    results: the results of all members.
    out: the folder of the comparison.
    """
    save_curves(results, out / "curves.png")
    report(results, out)


def settings_record(comparison: Comparison) -> dict[str, Any]:
    """Return the settings for results.json: everything that the results depend on, except the members.

    comparison: the comparison. With several learning rates `lr` is None here, and the results of each member have its
        best rate.
    """
    job, spent, rates = comparison.job, comparison.spent, comparison.rates
    cpu = f"{platform.processor() or platform.machine()}, cores: {os.cpu_count()}, threads: {torch.get_num_threads()}"
    text = isinstance(job.data, TextData)
    return {
        "data": job.data.name,
        **({"train_bytes": job.text.part("train").bytes} if text else {}),
        **asdict(job.settings),
        **({"lr": None, "lrs": list(rates)} if len(rates) > 1 else {}),
        **({"valid_bytes": job.valid_bytes} if text else {}),
        "measured": job.data.describe_sample(comparison.split, job.settings.length, job.settings.sample_bytes),
        "counted": job.data.counted,
        **{"split": comparison.split, "seeds": comparison.seeds, "matched": list(comparison.changed)},
        **spent.as_record,
        "budget": str(spent),
        "temperature": TEMPERATURE,
        "hardware": torch.cuda.get_device_name(job.device) if job.device.type == "cuda" else f"CPU: {cpu}",
        "versions": {
            "kinformer": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "platform": platform.platform(),
        },
    }
