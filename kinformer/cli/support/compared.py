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
from kinformer.cli.errors import UserError
from kinformer.cli.support.afford import refuse_too_large
from kinformer.cli.support.asked import TEMPERATURE
from kinformer.cli.support.damaged import ANEW, refuse_damaged
from kinformer.cli.support.early import PLAN
from kinformer.cli.support.match import matched
from kinformer.cli.support.measured import row_of
from kinformer.cli.support.training import (
    Job,
    fitting,
    make_folder,
    readable,
    refuse_frozen,
    spare,
    tell_split,
    trainable,
)
from kinformer.cli.support.trials import Spent, Taken, Trial, begin, best_rate, gone_on, in_turns, plan, trials
from kinformer.cli.support.wanted import Wanted, titles
from kinformer.core.model import Model
from kinformer.lab.data.text import TextData
from kinformer.lab.train.budget import Budget
from kinformer.lab.train.decisions import Decisions
from kinformer.lab.train.history import History
from kinformer.pages.results import Results


@dataclass(frozen=True)
class Comparison:
    """What is compared: members by their titles, on what all of them share, and where it is kept.

    split: what is reported, test where each member has the best of several rates. changed: what was done to bring
    members to one size, in words. going_on: it was begun by an earlier command.
    """

    members: Mapping[str, Wanted]
    job: Job
    spent: Spent
    rates: tuple[float | None, ...]
    seeds: int
    split: str
    out: Path
    changed: Sequence[str] = ()
    going_on: bool = False

    @property
    def plan(self) -> dict[str, Any]:
        """All that it follows from."""
        return plan(self.members.items(), self.job, self.spent, rates=self.rates, seeds=self.seeds)

    def begun(self, resume: bool) -> "Comparison":
        """It, if an earlier command has begun it; whether that was of the same is seen when it is `ready`."""
        return replace(self, going_on=resume and (self.out / PLAN).is_file())


def equals(wanted: Sequence[Wanted], job: Job, match: bool) -> tuple[dict[str, Wanted], list[str]]:
    """Members by title, with as many kinds of tokens as the data has, brought to one size if they are to match."""
    fits, changed = [fitting(one, job.data) for one in wanted], list[str]()
    if match:
        fits, changed = matched(fits)
    return dict(zip(titles(fits), fits, strict=True)), changed


def models_of(it: Comparison) -> tuple[dict[str, Model], dict[str, Decisions]]:
    """Each member as it begins, with its decisions if the comparison begins.

    UserError for a member that is too large, does not read the data, or is judged otherwise.
    """
    settings, found, decisions = it.job.settings, {}, {}
    for title, one in it.members.items():
        refuse_too_large(one, settings.batch, settings.length)
        found[title] = one.build(settings.seed)
        if it.going_on:
            readable(one.text, found[title], it.job)
        else:
            decisions[title] = trainable(one.text, found[title], it.job)
        refuse_frozen(one.text, found[title], " leave it out: a comparison begins with no trained weights")
    metrics = {it.job.data.metric(model).name: title for title, model in found.items()}
    if len(metrics) > 1:
        judged = ", ".join(f"{title} by {name}" for name, title in metrics.items())
        raise UserError(f"members are compared by one measure, and {judged}; compare one kind of them, or on a task")
    return found, decisions


def ready(it: Comparison, overwrite: bool) -> tuple[Comparison, dict[str, Taken], list[Trial]]:
    """The comparison with all fixed that is fixed before the first step, what its members take, and its trainings."""
    models, decisions = models_of(it)
    if it.going_on:
        it = replace(it, job=gone_on(it.out, it.plan, it.job))
    taken = {}
    for title, one in it.members.items():
        print(f"{title}: measuring what a step takes ...", file=sys.stderr)
        taken[title] = Taken.of(one, models[title], it.job)
    budgets = [it.spent.of(one, taken[title].step_flops) for title, one in it.members.items()]
    if not it.going_on:
        it = replace(it, job=it.job.fixed(list(models.values()), budgets))
    every = [
        replace(trial, decisions=decisions.get(trial.member))
        for trial in trials(_each(it, budgets), it.job, it.rates, it.seeds, it.out)
    ]
    if it.going_on:
        for trial in every:
            refuse_damaged(trial.folder, ANEW)
    else:
        for trial in every:
            spare(trial.folder, models[trial.member], overwrite)
        make_folder(it.out)
        begin(it.out, it.plan, (trial.folder for trial in every))
    return it, taken, every


def _each(it: Comparison, budgets: Sequence[Budget]) -> list[tuple[str, Wanted, Budget]]:
    return [(*pair, budget) for pair, budget in zip(it.members.items(), budgets, strict=True)]


def compared(it: Comparison, taken: Mapping[str, Taken], every: Sequence[Trial]) -> Results:
    """Train all, and measure what came of each; results.json is there from the first member on."""
    tell_split(it.job)
    done, failed = in_turns(every)
    settings = settled(it.job, it.spent, it.split, it.seeds, list(it.changed), it.rates)
    results = Results(settings, _levels(it), [])
    for title in it.members:
        its, means = _best(title, every, done, failed)
        print(f"{title}: asking it to write or to answer, and timing that ...", file=sys.stderr)
        results.members.append(row_of(its, done, it.split, it.out, means, taken[title]))
        results.save(it.out / "results.json")
    return results


def _levels(it: Comparison) -> dict[str, float]:
    """What their measure is read beside: all of them have one and the same."""
    model, settings = next(iter(it.members.values())).build(it.job.settings.seed), it.job.settings
    return dict(it.job.data.levels(model, it.split, settings.length, settings.sample_bytes))


def _best(
    title: str, every: Sequence[Trial], done: Mapping[str, History], failed: Mapping[str, UserError]
) -> tuple[list[Trial], dict[str, float | None]]:
    """The trainings of a member at its best rate, and the mean at each."""
    its = [trial for trial in every if trial.member == title]
    sign = 1 if next(iter(done.values())).metric.better == "less" else -1
    best, means = best_rate(its, failed, lambda trial: done[trial.name].best.valid, sign)
    return [trial for trial in its if trial.lr == best], means


def written(results: Results, out: Path) -> None:
    """The picture and the report beside results.json."""
    from kinformer.pages.comparison import save_curves
    from kinformer.pages.report import report

    save_curves(results, out / "curves.png")
    report(results, out)


def settled(
    job: Job, spent: Spent, split: str, seeds: int, matched: list[str], lrs: Sequence[float | None]
) -> dict[str, Any]:
    """Everything that the numbers depend on besides the members; of several rates each row has its own."""
    cpu = f"{platform.processor() or platform.machine()}, cores: {os.cpu_count()}, threads: {torch.get_num_threads()}"
    text = isinstance(job.data, TextData)
    return {
        "data": job.data.name,
        **({"train_bytes": job.text.part("train").bytes} if text else {}),
        **asdict(job.settings),
        **({"lr": None, "lrs": list(lrs)} if len(lrs) > 1 else {}),
        **({"valid_bytes": job.valid_bytes} if text else {}),
        "measured": job.data.measured(split, job.settings.length, job.settings.sample_bytes),
        "counted": job.data.counted,
        "split": split,
        "seeds": seeds,
        "matched": matched,
        **spent.told,
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
