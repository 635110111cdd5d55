"""The steps of `kinformer compare`: checks, training in turns, measurements and the report."""

import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from kinformer import __version__
from kinformer.cli.support.comparison_time import tell_plan
from kinformer.cli.support.grid import GridPoint, SweepGrid, as_number, check_keywords_exist
from kinformer.cli.support.member_cost import MemberCost
from kinformer.cli.support.member_results import measure_member
from kinformer.cli.support.memory_limits import refuse_too_large
from kinformer.cli.support.option_checks import PLAN
from kinformer.cli.support.run_folder import ANEW, make_folder, refuse_damaged, refuse_frozen, refuse_occupied
from kinformer.cli.support.training import Job, check_trainable, fit_to_data, tell_split
from kinformer.cli.support.trials import (
    Trial,
    TrialBudget,
    Variant,
    best_trials,
    comparison_plan,
    list_trials,
    resume_job,
    settings_at,
    start_comparison,
    train_in_turns,
    variant_of,
)
from kinformer.core.keywords import signature
from kinformer.core.model import Model
from kinformer.decoding.sampling import TEMPERATURE, TOP_P
from kinformer.lab.compare.parameters import match_parameters
from kinformer.lab.data.resolve import DataSource
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import UserError
from kinformer.lab.machine import describe_processor
from kinformer.lab.member_choice import MemberChoice, find_member_function, keyword_texts, titles
from kinformer.lab.train.guess_level import guess_level
from kinformer.lab.train.member_fit import check_readable
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.startup_decisions import Decisions
from kinformer.lab.train.training_stages import is_finished
from kinformer.pages.comparison import save_curves, save_grid
from kinformer.pages.comparison_results import Results
from kinformer.pages.report import report

NO_GRID = SweepGrid()


@dataclass(frozen=True)
class Comparison:
    """Members and settings of one comparison by `kinformer compare`.

    members: the members (named models) by title.
    job: data and settings, the same for every member.
    spent: the training budget that each training spends.
    grid: the settings and keywords that are tried for each member; NO_GRID trains each member as it is.
    seeds: number of seeds for each member and point of the grid.
    split: the split whose metric is reported; "test" if the best of several points is chosen on validation data.
    out: the folder of the comparison.
    changed: the changes of width or depth that give the members about equally many parameters, in words.
    going_on: True if the comparison continues one that an earlier command started.
    at: the members by title at each point of the grid; unless given, they are `members` everywhere.
    """

    members: Mapping[str, MemberChoice]
    job: Job
    spent: TrialBudget
    grid: SweepGrid
    seeds: int
    split: str
    out: Path
    changed: Sequence[str] = ()
    going_on: bool = False
    at: Mapping[GridPoint, Mapping[str, MemberChoice]] = field(default_factory=dict)

    @property
    def plan(self) -> dict[str, Any]:
        """Record for comparison.json of everything that determines the results."""
        return comparison_plan(self.members.items(), self.job, self.spent, grid=self.grid.record, seeds=self.seeds)

    @property
    def variants(self) -> dict[Variant, MemberChoice]:
        """The members at all points of the grid, once for trainings that differ only in rate or seed."""
        return {variant_of(title, point, self.job.settings): choice for title, point, choice in self.choices}

    @property
    def choices(self) -> Iterator[tuple[str, GridPoint, MemberChoice]]:
        """Title, point of the grid and member of each training, in order; seeds are left out."""
        for title, choice in self.members.items():
            for point in self.grid.points:
                yield title, point, self.at.get(point, {}).get(title, choice)

    def resume_if_begun(self, resume: bool) -> "Comparison":
        """Return the comparison, as a continued one if `resume` is true and its folder holds comparison.json.

        resume: whether to continue an earlier comparison; `prepare_comparison` checks that its record agrees.
        """
        return replace(self, going_on=resume and (self.out / PLAN).is_file())


def check_grid(
    grid: SweepGrid,
    choices: Sequence[MemberChoice],
    make: Callable[[GridPoint], Sequence[MemberChoice]],
    source: DataSource,
) -> None:
    """Check that the members have the keywords of a grid and take their values, before any data is read.

    grid: the grid.
    choices: the members without the grid.
    make: returns the members with the keywords of a point.
    source: the data source.

    Errors: UserError. A note on stderr names members that are given twice.
    """
    names = titles(choices)
    own = [
        {*signature(find_member_function(choice.name)).parameters, *signature(choice.function).parameters}
        for choice in choices
    ]
    check_keywords_exist(grid.keyword_names, dict(zip(names, own, strict=True)))
    for name in grid.keyword_names:
        for choice in choices:
            if any(text.partition("=")[0].strip() == name for text in keyword_texts(choice.text)):
                raise UserError(f"--grid {name}: {choice.text} gives {name} too, expected only one of them")
    if "length" in [axis.name for axis in grid.axes] and source.kind is not None:
        if not source.kind.sized or {"pairs", "labelled"} & {*source.kind.serves}:
            raise UserError(
                f"--grid length: results on {source.kind.noun} of several lengths cannot be compared. Leave it out"
            )
    for point in grid.points:
        make(point)
    for title, choice in zip(names, choices, strict=True):
        if title != choice.text.rpartition(".py:")[2]:
            print(f"{title} is the same member as {choice.text}: a second training of it", file=sys.stderr)


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


def members_at_points(
    make: Callable[[GridPoint], Sequence[MemberChoice]], grid: SweepGrid, job: Job, match: bool
) -> tuple[dict[str, MemberChoice], dict[GridPoint, dict[str, MemberChoice]], list[str]]:
    """Fit the members to the data at each point of a grid, and match their parameters on request.

    make: returns the members with the keywords of a point.
    grid: the grid.
    job: the data and settings.
    match: match the parameter counts as in `matched_members`, with the first member at the same point.

    Returns the members by title without the grid, the members by title at each point, and the changes in words.
    """
    names = titles(make(GridPoint()))
    fitted: dict[tuple[Any, ...], tuple[list[MemberChoice], list[str]]] = {}
    at = {}
    for point in grid.points:
        settings = settings_at(job.settings, point)
        key = (*point.keywords, settings.length)
        if key not in fitted:
            found, changed = matched_members(make(point), replace(job, settings=settings), match)
            fitted[key] = list(found.values()), changed
        at[point] = dict(zip(names, fitted[key][0], strict=True))
    members = next(iter(at.values()))
    every = list(dict.fromkeys(words for _, changed in fitted.values() for words in changed))
    return members, at, every


def build_models(comparison: Comparison) -> tuple[dict[str, Model], dict[Variant, Decisions]]:
    """Build the model of each member of a comparison, and check that each of its variants can be trained.

    comparison: the members, data and settings.

    Returns the untrained model of the first variant of each member, by title, and the decisions of all variants.
    Decisions are tested facts about a model that set its batches, such as whether its outputs depend on later tokens;
    there are none if the comparison is resumed. Errors: UserError for a member that is too large, does not read the
    data, has frozen weights or is evaluated by another metric.
    """
    models, decisions, metrics = dict[str, Model](), dict[Variant, Decisions](), dict[str, str]()
    for variant, choice in comparison.variants.items():
        job = replace(comparison.job, settings=_settings_of(variant, comparison.job.settings))
        refuse_too_large(choice, -(-variant.batch // variant.accumulate), variant.length, job.device)
        model = choice.build(job.settings.seed)
        if comparison.going_on:
            check_readable(choice.text, model, job.data, job.settings)
        else:
            decisions[variant] = check_trainable(choice.text, model, job)
        refuse_frozen(choice.text, model, " leave it out, because a comparison trains from scratch")
        metrics.setdefault(job.data.metric(model).name, variant.member)
        models.setdefault(variant.member, model)
    if len(metrics) > 1:
        judged = ", ".join(f"{name} ({title})" for name, title in metrics.items())
        raise UserError(
            f"cannot compare by several metrics: got {judged}, expected one metric for all. Compare members that "
            "read the same kind of data, or compare on a task"
        )
    return models, decisions


def _settings_of(variant: Variant, settings: Settings) -> Settings:
    names = ("batch", "length", "accumulate", "precision")
    return replace(settings, **{name: getattr(variant, name) for name in names})


def prepare_comparison(
    comparison: Comparison, overwrite: bool
) -> tuple[Comparison, dict[Variant, MemberCost], list[Trial]]:
    """Check a comparison, and fix its measurements and trainings before the first step.

    comparison: the members, data and settings.
    overwrite: whether models in the folder may be replaced.

    Returns the comparison with a fixed size and number of measurements, the costs that are known, and the trainings.
    Errors: UserError if a training would fail later, or if the folder holds other models.
    """
    models, decisions = build_models(comparison)
    if comparison.going_on:
        comparison = replace(comparison, job=resume_job(comparison.out, comparison.plan, comparison.job))
    costs, settings = _first_costs(comparison), comparison.job.settings
    members = [
        (title, point, choice, comparison.spent.member_budget(choice, _step_flops(costs, title, point, settings)))
        for title, point, choice in comparison.choices
    ]
    if not comparison.going_on:
        budgets = [budget for *_, budget in members]
        comparison = replace(comparison, job=comparison.job.fix_measurements(list(models.values()), budgets))
    every = list_trials(members, comparison.job, comparison.seeds, comparison.out, decisions)
    if comparison.going_on:
        for trial in every:
            refuse_damaged(trial.folder, ANEW)
    else:
        for trial in every:
            refuse_occupied(trial.folder, models[trial.member], overwrite)
        make_folder(comparison.out)
        start_comparison(comparison.out, comparison.plan, (trial.folder for trial in every))
    left = [trial for trial in every if not (comparison.going_on and is_finished(trial.folder, trial.job.budget))]
    if left:
        tell_plan(left, models, comparison.split)
    return comparison, costs, every


def _first_costs(comparison: Comparison) -> dict[Variant, MemberCost]:
    """The costs that are measured before the training: of one variant of each member, or of all for --flops."""
    costs = dict[Variant, MemberCost]()
    for variant in comparison.variants:
        if comparison.spent.flops is not None or variant.member not in {other.member for other in costs}:
            costs[variant] = _measure_cost(comparison, variant)
    return costs


def _measure_cost(comparison: Comparison, variant: Variant) -> MemberCost:
    print(
        f"{' '.join((variant.member, *variant.keywords))}: measuring the cost of a training step ...", file=sys.stderr
    )
    job = replace(comparison.job, settings=_settings_of(variant, comparison.job.settings))
    choice = comparison.variants[variant]
    return MemberCost.measure(choice, choice.build(0), job)


def _step_flops(costs: Mapping[Variant, MemberCost], title: str, point: GridPoint, settings: Settings) -> int:
    known = costs.get(variant_of(title, point, settings))
    return 0 if known is None else known.step_flops  # 0 for a budget that does not depend on it


def train_and_measure(comparison: Comparison, costs: Mapping[Variant, MemberCost], every: Sequence[Trial]) -> Results:
    """Train all members of a comparison, measure each, and write results.json after each one.

    comparison: the comparison that `prepare_comparison` returned.
    costs: the costs that it returned.
    every: all trainings that it returned.

    Returns the results of all members.
    """
    tell_split(comparison.job)
    done, failed = train_in_turns(every, comparison.out.name or "comparison")
    results = Results(settings_record(comparison), _levels(comparison), [])
    for title in comparison.members:
        own_trials = [trial for trial in every if trial.member == title]
        best, points = best_trials(own_trials, done, failed)
        variant = variant_of(title, best[0].point, comparison.job.settings)
        cost = costs[variant] if variant in costs else _measure_cost(comparison, variant)
        print(f"{title}: generating a sample and measuring its speed ...", file=sys.stderr)
        results.members.append(measure_member(best, done, comparison.split, comparison.out, points, cost))
        results.save(comparison.out / "results.json")
    return results


def _levels(comparison: Comparison) -> dict[str, float]:
    """Reference values of the metric, such as the score of guessing; they are the same for all members."""
    settings = comparison.job.settings
    model = next(iter(comparison.members.values())).build(settings.seed)
    return dict(comparison.job.data.levels(model, comparison.split, settings.length, settings.sample_bytes))


def write_report(results: Results, out: Path) -> None:
    """Write the pictures and the report.html of a comparison.

    results: the results of all members.
    out: the folder of the comparison.
    """
    save_curves(results, out / "curves.png")
    save_grid(results, out / "grid.png")
    report(results, out)


def settings_record(comparison: Comparison) -> dict[str, Any]:
    """Return the settings for results.json: everything that the results depend on, except the members.

    comparison: the comparison. A setting that a grid varies is None here, and the results of each member have its best
        value.
    """
    job, spent, grid = comparison.job, comparison.spent, comparison.grid
    on_gpu = job.device.type == "cuda"
    hardware = torch.cuda.get_device_name(job.device) if on_gpu else f"CPU: {describe_processor()}"
    text = isinstance(job.data, TextData)
    level = guess_level(next(iter(comparison.members.values())).build(job.settings.seed), job.data, job.settings)
    return {
        "data": job.data.name,
        **({"train_bytes": job.text.part("train").bytes} if text else {}),
        **asdict(job.settings),
        **{axis.name: None for axis in grid.axes if axis.is_setting},
        "grid": {axis.name: [as_number(text) or text for text in axis.values] for axis in grid.axes},
        "guess": None if level is None else level._asdict() | {"metric": level.metric._asdict()},
        **({"valid_bytes": job.valid_bytes} if text else {}),
        "measured": job.data.describe_sample(comparison.split, job.settings.length, job.settings.sample_bytes),
        "counted": job.data.counted,
        **{"split": comparison.split, "seeds": comparison.seeds, "matched": list(comparison.changed)},
        **spent.as_record,
        "budget": str(spent),
        **{"temperature": TEMPERATURE, "top_p": TOP_P},
        "hardware": hardware,
        "versions": {
            "kinformer": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "platform": platform.platform(),
        },
    }
