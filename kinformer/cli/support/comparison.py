"""A comparison from its members to its report: refused before the first step, trained in turns, measured, written."""

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
from kinformer.cli.support.training import Job, check_trainable, tell_split
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
from kinformer.lab.train.member_fit import check_readable, fit_keywords
from kinformer.lab.train.startup_decisions import Decisions
from kinformer.pages.comparison import save_curves
from kinformer.pages.comparison_results import Results
from kinformer.pages.report import report


@dataclass(frozen=True)
class Comparison:
    """What is compared: members by their titles, on what all of them share, and where it is kept.

    split: what is reported, test where each member has the best of several rates. changed: what was done to bring
    members to one size, in words. going_on: it was begun by an earlier command.
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
        """All that it follows from."""
        return comparison_plan(self.members.items(), self.job, self.spent, rates=self.rates, seeds=self.seeds)

    def resume_if_begun(self, resume: bool) -> "Comparison":
        """It, going on if an earlier command began it; `prepare_comparison` checks that this was the same."""
        return replace(self, going_on=resume and (self.out / PLAN).is_file())


def matched_members(
    choices: Sequence[MemberChoice], job: Job, match: bool
) -> tuple[dict[str, MemberChoice], list[str]]:
    """Members by title, with as many kinds of tokens as the data has, brought to one size if they are to match."""
    fits, changed = [fit_keywords(choice, job.data) for choice in choices], list[str]()
    if match:
        fits, changed = match_parameters(fits)
    return dict(zip(titles(fits), fits, strict=True)), changed


def build_models(comparison: Comparison) -> tuple[dict[str, Model], dict[str, Decisions]]:
    """Each member as it begins, with its decisions if the comparison begins.

    UserError for a member that is too large, does not read the data, or is judged otherwise.
    """
    settings, models, decisions = comparison.job.settings, {}, {}
    for title, choice in comparison.members.items():
        refuse_too_large(choice, settings.batch, settings.length)
        models[title] = choice.build(settings.seed)
        if comparison.going_on:
            check_readable(choice.text, models[title], comparison.job.data, comparison.job.settings)
        else:
            decisions[title] = check_trainable(choice.text, models[title], comparison.job)
        refuse_frozen(choice.text, models[title], " leave it out: a comparison begins with no trained weights")
    metrics = {comparison.job.data.metric(model).name: title for title, model in models.items()}
    if len(metrics) > 1:
        judged = ", ".join(f"{title} by {name}" for name, title in metrics.items())
        raise UserError(f"members are compared by one measure, and {judged}; compare one kind of them, or on a task")
    return models, decisions


def prepare_comparison(
    comparison: Comparison, overwrite: bool
) -> tuple[Comparison, dict[str, MemberCost], list[Trial]]:
    """The comparison with all fixed that is fixed before the first step, what its members take, and its trainings."""
    models, decisions = build_models(comparison)
    if comparison.going_on:
        comparison = replace(comparison, job=resume_job(comparison.out, comparison.plan, comparison.job))
    costs = {}
    for title, choice in comparison.members.items():
        print(f"{title}: measuring what a step takes ...", file=sys.stderr)
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
    """Train all, and measure what came of each; results.json is there from the first member on."""
    tell_split(comparison.job)
    done, failed = train_in_turns(every)
    results = Results(settings_record(comparison), _levels(comparison), [])
    for title in comparison.members:
        own_trials = [trial for trial in every if trial.member == title]
        best, means = best_trials(own_trials, done, failed)
        print(f"{title}: asking it to write or to answer, and timing that ...", file=sys.stderr)
        results.members.append(measure_member(best, done, comparison.split, comparison.out, means, costs[title]))
        results.save(comparison.out / "results.json")
    return results


def _levels(comparison: Comparison) -> dict[str, float]:
    """What their measure is read beside: all of them have one and the same."""
    settings = comparison.job.settings
    model = next(iter(comparison.members.values())).build(settings.seed)
    return dict(comparison.job.data.levels(model, comparison.split, settings.length, settings.sample_bytes))


def write_report(results: Results, out: Path) -> None:
    """The picture and the report beside results.json."""
    save_curves(results, out / "curves.png")
    report(results, out)


def settings_record(comparison: Comparison) -> dict[str, Any]:
    """Everything that the numbers depend on besides the members; of several rates each row has its own."""
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
