"""Trainings of a comparison: each member at each point of the grid and with each seed, in turns.

In turns, other load of the machine slows down all trainings equally.
"""

import hashlib
import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from kinformer.checkpoint.atomic_files import contents as read_file
from kinformer.checkpoint.atomic_files import remove, write
from kinformer.cli.errors import print_warnings
from kinformer.cli.support.grid import GridPoint
from kinformer.cli.support.option_checks import PLAN, RESULTS
from kinformer.cli.support.run_folder import ANEW, with_advice
from kinformer.cli.support.training import Job
from kinformer.cli.support.training_run import run_loggers, train_until
from kinformer.cli.support.typed_options import as_typed
from kinformer.core.from_json import from_json
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice, folder_name
from kinformer.lab.train.budget import Budget, MinuteBudget, StepBudget
from kinformer.lab.train.history import History
from kinformer.lab.train.loggers import LogLine
from kinformer.lab.train.loop import TrainingStopped
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.start_record import difference, fingerprint, in_form_of
from kinformer.lab.train.startup_decisions import Decisions

WRITTEN = (RESULTS, "report.html", "curves.png", "grid.png")
LONGEST = 200  # bytes of the name of a folder, for which file systems take at most 255
FIXED = ("measures", "valid_bytes")  # settings that a comparison fixes when it starts


@dataclass(frozen=True)
class Trial:
    """One training of a comparison: a member at one point of the grid, with one seed.

    member: title of the member.
    name: name of the training, for progress and messages.
    choice: the member with its keywords.
    job: data, budget and settings of this training.
    folder: folder of the run.
    point: the point of the grid.
    decisions: tested facts about the model that set its batches, such as whether its outputs depend on later tokens; if
        None, the training tests them.
    """

    member: str
    name: str
    choice: MemberChoice
    job: Job
    folder: Path
    point: GridPoint = GridPoint()
    decisions: Decisions | None = None

    @property
    def seed(self) -> int:
        """Seed of the initial weights and the training batches."""
        return self.job.settings.seed


@dataclass(frozen=True)
class TrialBudget:
    """Training budget of each member; exactly one of the three is given.

    minutes: minutes of training.
    steps: training steps.
    flops: additions and multiplications of the whole training.

    Errors: UserError.
    """

    minutes: float | None = None
    steps: int | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.minutes, self.steps, self.flops)) != 1:
            raise UserError(
                "wrong budget for each member: expected exactly one of --minutes M, --steps N and --flops F"
            )
        if self.flops is not None and not 0 < self.flops < math.inf:
            raise UserError(f"wrong --flops: got {self.flops:g}, expected a finite number above 0, such as 1e13")

    def __str__(self) -> str:
        if self.flops is not None:
            return f"{self.flops:.3g} additions and multiplications"
        return f"{self.steps:,} steps" if self.steps is not None else f"{self.minutes:g} minutes"

    @property
    def as_record(self) -> dict[str, float]:
        """Budget as a record with one entry, such as {"steps": 1000}."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def member_budget(self, choice: MemberChoice, step_flops: int) -> Budget:
        """Return the training budget of a member in minutes or steps.

        choice: the member.
        step_flops: additions and multiplications of one of its training steps.

        Errors: UserError if --flops does not suffice for one step.
        """
        if self.flops is None:
            with from_user(ValueError):
                return MinuteBudget(self.minutes or 0.0) if self.steps is None else StepBudget(self.steps)
        if step_flops > self.flops:
            each = f"{step_flops:.3g}"
            raise UserError(
                f"--flops {self.flops:.3g} is too small: one step of {choice.text} takes {each} operations. Give a "
                "larger number"
            )
        return StepBudget(int(self.flops // step_flops))


class Variant(NamedTuple):
    """Trainings that cost the same: they differ only in rate or seed.

    member: title of the member.
    keywords: keywords of the grid, such as "window=64".
    batch, length, accumulate, precision: the settings that decide the memory and the operations of a step.
    """

    member: str
    keywords: tuple[str, ...]
    batch: int
    length: int
    accumulate: int
    precision: str


def variant_of(member: str, point: GridPoint, settings: Settings) -> Variant:
    """Return the variant of a training.

    member: title of the member.
    point: the point of the grid.
    settings: the settings of the comparison; the point replaces some of them.
    """
    own = settings_at(settings, point)
    return Variant(member, tuple(point.keywords), own.batch, own.length, own.accumulate, own.precision)


def settings_at(settings: Settings, point: GridPoint) -> Settings:
    """Return settings with the values of a point of the grid; UserError for a value out of range.

    settings: the settings.
    point: the point.
    """
    with from_user(ValueError):
        return replace(settings, **point.settings)


def list_trials(
    members: Iterable[tuple[str, GridPoint, MemberChoice, Budget]],
    job: Job,
    seeds: int,
    out: Path,
    decisions: Mapping[Variant, Decisions],
) -> list[Trial]:
    """List all trainings of a comparison, in the order of members, points of the grid, and seeds.

    members: for each member and point of the grid: its title, the point, the member with its keywords, and its budget.
    job: data and settings.
    seeds: number of seeds; the first one is the seed of the settings.
    out: folder of the comparison. If a member has several trainings, each has a subfolder in the member's folder.
    decisions: tested facts about the model of each variant, which set its batches.
    """
    trainings, members, folders = [], list(members), DistinctFolders()
    several = len({point for _, point, _, _ in members}) > 1
    for title, point, choice, budget in members:
        for seed in range(job.settings.seed, job.settings.seed + seeds):
            words = [*(point.words if several else ()), *([f"seed={seed}"] if seeds > 1 else [])]
            own_job = replace(job, budget=budget, settings=replace(settings_at(job.settings, point), seed=seed))
            folder = out.joinpath(folders.of(title), folders.of(*words))
            tested = decisions.get(variant_of(title, point, job.settings))
            trainings.append(Trial(title, " ".join((title, *words)), choice, own_job, folder, point, tested))
    return trainings


class DistinctFolders:
    """Names of folders for titles and points of a grid.

    Special characters are left out. If other words had the same name before, or if it is too long, a hash ends it.
    """

    def __init__(self) -> None:
        self._words: dict[str, tuple[str, ...]] = {}

    def of(self, *words: str) -> str:
        """Return the name of the folder for some words, the same each time; "" for none.

        words: the words, such as the values of a point of a grid.
        """
        name = "+".join(map(folder_name, words))
        if len(name.encode()) > LONGEST or self._words.setdefault(name, words) != words:
            mark = hashlib.sha256("\n".join(words).encode()).hexdigest()[:8]
            name = f"{name.encode()[:LONGEST].decode(errors='ignore')}-{mark}"
        return name


def train_in_turns(
    trials: Sequence[Trial], group: str = "comparison"
) -> tuple[dict[str, History], dict[str, UserError]]:
    """Train all trainings of a comparison in turns, and return their histories and errors by name.

    trials: the trainings.
    group: name of the comparison, under which loggers group the trainings.

    Each turn spends a piece of the budget. A training is loaded from its folder at its turn, and saved at the end of
    the turn. So only one model is in memory, and a killed process loses only seconds. A loss that is not finite ends
    one training, and the others continue. Errors: UserError if this happens to a member at every point of the grid.
    """
    done: dict[str, History] = {}
    failed: dict[str, UserError] = {}
    titles = {trial.name: f"{trial.name} ({n} of {len(trials)})" for n, trial in enumerate(trials, 1)}
    for trial in trials:
        if (step := RunFolder(trial.folder).step) is not None:
            with with_advice(ANEW), from_user(ValueError, OSError):
                done[trial.name] = History.read(trial.folder)
            print(f"{titles[trial.name]}: continues from step {step:,}", file=sys.stderr)
    turns = max(trial.job.budget.turns for trial in trials)
    with print_warnings(), ExitStack() as stack:
        loggers: dict[str, LogLine] = {}
        for turn in range(turns):
            for trial in (*trials[turn % len(trials) :], *trials[: turn % len(trials)]):
                history, until = done.get(trial.name), (turn + 1) / turns
                if trial.name in failed or (history and _spent_share(trial, history) >= until):
                    continue
                try:
                    model = trial.choice.build(trial.seed)
                    if trial.name not in loggers:
                        run = (trial.name, model, trial.job, trial.folder, history is not None, group)
                        loggers[trial.name] = stack.enter_context(run_loggers(*run))
                    with with_advice(ANEW):
                        done[trial.name] = train_until(
                            titles[trial.name],
                            model,
                            trial.job,
                            trial.folder,
                            resume=history is not None,
                            until=until,
                            decisions=trial.decisions,
                            log_line=loggers[trial.name],
                        )
                except UserError as error:
                    failed[trial.name] = error
                    bad = {other.point for other in trials if other.name in failed and other.member == trial.member}
                    every = {other.point for other in trials if other.member == trial.member}
                    if bad == every or not isinstance(error.__cause__, TrainingStopped):
                        raise
    return done, failed


def _spent_share(trial: Trial, history: History) -> float:
    return trial.job.budget.fraction_spent(history.step, history.seconds)


def comparison_plan(
    members: Iterable[tuple[str, MemberChoice]], job: Job, spent: TrialBudget, **details: Any
) -> dict[str, Any]:
    """Return the record for comparison.json: everything that determines the results.

    It is written before the first step.

    members: the members by title.
    job: data and settings.
    spent: budget of each member.
    **details: further entries of the record.
    """
    entries = {
        title: {"member": choice.function.__name__, "keywords": dict(choice.keywords)} for title, choice in members
    }
    record = {"data": job.data.name, "bytes": fingerprint(job.data), "members": entries, **spent.as_record, **details}
    return json.loads(json.dumps(record | asdict(job.settings)))


def resume_job(out: Path, now: dict[str, Any], job: Job) -> Job:
    """Return the job with the size and number of measurements of the comparison that is resumed.

    out: folder of the comparison.
    now: the record of the present command, as `comparison_plan` returns it, to compare with the saved one.
    job: data and settings.

    Errors: UserError, with the difference, if the folder holds another comparison or an unreadable record.
    """
    try:
        before = from_json(read_file(out / PLAN))
        if not isinstance(before, dict):
            raise ValueError(f"{PLAN} was not written by kinformer")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot resume the comparison in {out}: {error}") from error
    with from_user(ValueError, KeyError, TypeError):
        before = with_grid(before)
        fixed, now = {name: before[name] for name in FIXED}, in_form_of(before, now, job.data)
        whole = before | asdict(Settings()) | before  # defaults for settings that an earlier version did not record
        words = difference(whole | fixed, now | fixed, as_typed)
        if (names := ", ".join(before["members"])) != (current_names := ", ".join(now["members"])):
            words = f"got {current_names}, expected {names}. Pass the same members"
        if words is not None:
            raise ValueError(f"cannot resume the comparison in {out}: {words}, or choose another --out")
        return replace(job, settings=replace(job.settings, **fixed))


def with_grid(before: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its grid; an earlier version recorded a list of rates instead.

    before: the record of comparison.json.
    """
    if "rates" not in before:
        return before
    rates = before["rates"]
    rest = {name: value for name, value in before.items() if name != "rates"}
    return rest | {"grid": {"lr": [f"{rate:g}" for rate in rates]} if len(rates) > 1 else {}}


def start_comparison(out: Path, plan: dict[str, Any], folders: Iterable[Path]) -> None:
    """Start a comparison: remove results and runs of an earlier one, and write comparison.json.

    out: folder of the comparison.
    plan: the record, as `comparison_plan` returns it.
    folders: folders of the trainings.

    Errors: UserError if a file cannot be removed or written.
    """
    with from_user(OSError):
        for name in WRITTEN:
            remove(out / name)
        for folder in folders:
            RunFolder(folder).clear()
        write(out / PLAN, (json.dumps(plan, indent=2) + "\n").encode())


class PointResult(NamedTuple):
    """The result of a member at one point of the grid.

    point: the point.
    mean: its validation metric, averaged over seeds; None if a loss was not finite.
    """

    point: GridPoint
    mean: float | None


def best_trials(
    trials: Sequence[Trial], done: Mapping[str, History], failed: Collection[str]
) -> tuple[list[Trial], list[PointResult]]:
    """Return the trainings of a member at its best point of the grid, and the result of each point.

    trials: the trainings of one member.
    done: the history (all measurements) of each training, by its name.
    failed: names of the trainings that ended with a loss that was not finite.

    The best point has the best validation metric, averaged over seeds.
    """
    means: dict[GridPoint, float | None] = {}
    for point in dict.fromkeys(trial.point for trial in trials):
        names = [trial.name for trial in trials if trial.point == point]
        means[point] = None if any(name in failed for name in names) else fmean(done[name].best.valid for name in names)
    sign = 1 if next(iter(done.values())).metric.better == "less" else -1
    best = min(
        (point for point, mean in means.items() if mean is not None), key=lambda point: sign * (means[point] or 0.0)
    )
    return [trial for trial in trials if trial.point == best], [PointResult(*pair) for pair in means.items()]
