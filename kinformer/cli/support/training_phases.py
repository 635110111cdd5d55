"""Training in phases (--then): all phases are checked before the first is trained."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import contents as read_file
from kinformer.checkpoint.atomic_files import write
from kinformer.checkpoint.model_files import BEST
from kinformer.cli.support.guess_warning import warn_of_guessing
from kinformer.cli.support.memory_limits import refuse_too_large
from kinformer.cli.support.option_checks import refuse_model
from kinformer.cli.support.run_folder import claimed_folder, load_start, refuse_damaged, refuse_occupied
from kinformer.cli.support.training import FIRST, Job, check_trainable, tell_split
from kinformer.cli.support.training_run import train_member
from kinformer.cli.support.typed_options import as_typed, as_typed_in_phase
from kinformer.core.from_json import from_json
from kinformer.core.keywords import as_texts, parse_keywords, split
from kinformer.core.model import Model
from kinformer.core.training_recipe import Recipe
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice, with_keywords
from kinformer.lab.train.budget import Budget, MinuteBudget, StepBudget
from kinformer.lab.train.guess_level import guess_level
from kinformer.lab.train.history import History
from kinformer.lab.train.member_fit import check_readable
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.start_record import difference, fingerprint, in_form_of
from kinformer.lab.train.startup_decisions import Decisions
from kinformer.lab.train.training_stages import carry_weights, doubled_keywords, is_finished, phase_recipe

OPTIONS = {"steps": int, "minutes": float, "batch": int, "length": int, "lr": float}
PLAN = "phases.json"


@dataclass(frozen=True)
class Phase:
    """One phase of a training in phases, the option --then of `kinformer train`.

    choice: the member with the keywords of the phase.
    job: data, budget and settings of the phase.
    folder: folder into which the phase is saved.
    """

    choice: MemberChoice
    job: Job
    folder: Path

    @property
    def plan(self) -> dict[str, Any]:
        """Record for phases.json of everything that determines the results of the phase."""
        plan = {
            "member": self.choice.name,
            "data": self.job.data.name,
            "bytes": fingerprint(self.job.data),
            "keywords": dict(self.choice.keywords),
            "budget": self.job.budget.record,
            "settings": asdict(self.job.settings),
        }
        return json.loads(json.dumps(plan))


def train_in_phases(
    first: MemberChoice, job: Job, then: Sequence[str], out: Path, *, start: Path | None, overwrite: bool, resume: bool
) -> None:
    """Train a member in phases; each phase starts from the best weights of the phase before.

    first: the member with the keywords of the first phase.
    job: the data and the settings of the first phase.
    then: the changes of each further phase, such as "steps=500,length=1024".
    out: folder of the last phase; earlier phases are in its subfolders phase-1, phase-2 and so on.
    start: folder of weights for the first phase; None starts from new weights.
    overwrite: replace the models in these folders.
    resume: skip finished phases, and continue the phase in which an earlier command was stopped.

    Errors: UserError.
    """
    phases = plan_phases(first, job, then, out)
    with claimed_folder(out, within=True):
        _train(phases, first, job, out, start, overwrite, resume)


def _train(
    phases: Sequence[Phase], first: MemberChoice, job: Job, out: Path, start: Path | None, overwrite: bool, resume: bool
) -> None:
    """Train the phases in a folder that the caller has locked."""
    going_on = resume and (out / PLAN).is_file()
    if going_on:
        for phase in phases:
            refuse_damaged(phase.folder)
    decisions, occupied = _check_phases(phases, overwrite or going_on, going_on)
    if occupied is not None:
        refuse_model(out, overwrite, resume)
        raise occupied
    plan = [phase.plan for phase in phases]
    if going_on:
        _check_same_phases(out, phases)
    begun = _first_model(phases[0], start, going_on)
    if not going_on:
        for phase in phases:
            RunFolder(phase.folder).clear()  # otherwise old phases would count as finished
    tell_split(job)
    for n, phase in enumerate(phases):
        if not is_finished(phase.folder, phase.job.budget):
            title = f"{phase.choice.text} (phase {n + 1} of {len(phases)})"
            model = phase.job.build(phase.choice) if n else begun
            whole = going_on and RunFolder(phase.folder).step is not None
            if n and not whole:
                load_start(phases[n - 1].folder / BEST, first.function, model, phase.job.data)
            fixed = phase.job.resume_measurements(phase.folder, model) if whole else phase.job.fix_measurements([model])
            phase.folder.mkdir(parents=True, exist_ok=True)
            write(out / PLAN, f"{json.dumps(plan, indent=2)}\n".encode())
            history = train_member(title, model, fixed, phase.folder, resume=whole, decisions=decisions[n])
            _print_result(title, history, fixed, phase.folder / BEST)
            level = guess_level(model, fixed.data, fixed.settings)
            warn_of_guessing(history, level, fixed.settings.recipe(model).peak)
    print(f"trained {len(phases)} phases; the model of the last phase is in {out}")


def _first_model(phase: Phase, start: Path | None, going_on: bool) -> Model:
    """The model of the first phase, with the weights in `start` unless it is resumed; read before files are cleared."""
    model = phase.job.build(phase.choice)
    if not (going_on and RunFolder(phase.folder).step is not None):
        load_start(start, phase.choice.function, model, phase.job.data)
    return model


def _print_result(title: str, history: History, job: Job, folder: Path) -> None:
    best = history.best
    print(
        f"{title}: {best.valid:.3f} {history.metric.name} on {job.measurement} at step {best.step:,}, saved in {folder}"
    )


def plan_phases(first: MemberChoice, job: Job, then: Sequence[str], out: Path) -> list[Phase]:
    """Return the phases of a training, each with its member keywords, budget, settings and folder.

    first: the member with the keywords of the first phase.
    job: the data and the settings of the first phase.
    then: the changes of each further phase.
    out: folder of the last phase.

    Errors: UserError for --schedule noam and for an invalid --then.
    """
    if job.settings.schedule == "noam":
        raise UserError(
            "cannot combine --schedule noam with --then, because each phase has another learning rate. Leave out "
            "one of the two"
        )
    recipe = job.settings.recipe(first.build(job.settings.seed))
    phases = [Phase(first, _phase_job(job, recipe, recipe.peak, job.budget), out / FIRST)]
    for n, text in enumerate(then, 2):
        phases.append(_next_phase(phases[-1], text, out if n > len(then) else out / f"phase-{n}"))
    return phases


def _phase_job(job: Job, recipe: Recipe, lr: float, budget: Budget) -> Job:
    """The job of a phase: its learning rate and budget, with the optimiser settings of the member's recipe."""
    with from_user(ValueError):
        plan = replace(phase_recipe(lr, budget), betas=recipe.betas, eps=recipe.eps)
        return replace(job, budget=budget, settings=replace(job.settings, lr=None, plan=plan))


def _next_phase(phase: Phase, text: str, folder: Path) -> Phase:
    """The phase after another: twice the window and length and half the learning rate, unless the text sets them."""
    words = [word for word in split(text) if word]
    values = {name.strip(): value for name, _, value in (word.partition("=") for word in words)}
    if len(values) < len(words):
        raise UserError(f"--then {text} gives a setting twice. Give each setting once")
    numbers = {name: _number(name, values[name]) for name in OPTIONS if name in values}
    settings = phase.job.settings
    assert settings.plan is not None  # set by `_phase_job`
    recipe = settings.plan
    if "steps" in numbers and "minutes" in numbers:
        raise UserError(f"--then {text}: got steps= and minutes=, expected only one of them")
    with from_user(ValueError, TypeError):
        budget: Budget = phase.job.budget
        if "steps" in numbers:
            budget = StepBudget(int(numbers["steps"]))
        elif "minutes" in numbers:
            budget = MinuteBudget(numbers["minutes"])
        length = int(numbers.get("length", 2 * settings.length))
        settings = replace(settings, length=length, batch=int(numbers.get("batch", settings.batch)))
        phase_keywords = parse_keywords(
            phase.choice.function, [word for word in words if word.partition("=")[0].strip() not in numbers]
        )
        keywords = doubled_keywords(phase.choice.function, phase.choice.keywords, length, phase_keywords)
    choice = replace(phase.choice, text=with_keywords(phase.choice.name, as_texts(keywords)), keywords=keywords)
    lr = numbers.get("lr", recipe.peak / 2)
    return Phase(choice, _phase_job(replace(phase.job, settings=settings), recipe, lr, budget), folder)


def _number(name: str, text: str) -> float:
    try:
        return OPTIONS[name](text)
    except ValueError:
        raise UserError(f"--then {name}={text}: expected a number. Write for example {name}=100") from None


def _check_phases(
    phases: Sequence[Phase], may: bool, going_on: bool
) -> tuple[list[Decisions | None], UserError | None]:
    """Check all phases; the UserError for anything that a phase would refuse names the phase.

    Returns the decisions of each phase (None if the phases are resumed), and the error for a folder with a model.
    """
    before, decisions, occupied = None, list[Decisions | None](), None
    for n, phase in enumerate(phases):
        settings = phase.job.settings
        refuse_too_large(phase.choice, -(-settings.batch // settings.accumulate), settings.length, phase.job.device)
        model = phase.job.build(phase.choice)
        name = f"phase {n + 1}, {phase.choice.text}"
        if going_on:
            check_readable(name, model, phase.job.data, phase.job.settings)
        decisions.append(None if going_on else check_trainable(name, model, phase.job))
        try:
            if before is not None:
                carry_weights(before, model)
        except ValueError as error:
            raise UserError(f"{name}: {error}") from error
        try:
            refuse_occupied(phase.folder, model, may)
        except UserError as error:
            occupied = occupied or error
        before = model
    return decisions, occupied


def _check_same_phases(out: Path, phases: Sequence[Phase]) -> None:
    """Refuse to resume phases that differ from those recorded in the folder; the UserError names the difference."""
    try:
        recorded = from_json(read_file(out / PLAN))
    except OSError as error:
        raise UserError(f"cannot resume {out}: {error}") from error
    except ValueError:
        recorded = None
    if not isinstance(recorded, list):
        raise UserError(f"cannot resume {out}: {PLAN} does not list the phases. Start again with --overwrite")
    advice = "start another run in a new folder"
    if len(recorded) != len(phases):
        count = f"got {len(phases)} phases, expected {len(recorded)}. Pass the same --then options"
        raise UserError(f"cannot resume {out}: {count}, or {advice}")
    for n, (before, phase) in enumerate(zip(recorded, phases, strict=True), 1):
        if (words := _difference(before, phase, n)) is not None:
            raise UserError(f"cannot resume phase {n} in {out}: {words}, or {advice}")


def _difference(before: Any, phase: Phase, number: int) -> str | None:
    """The first difference between a recorded phase and this one; None if there is none.

    number: number of the phase, from 1; values of later phases are written as in --then.
    """
    if isinstance(before, str):  # an earlier version recorded a sentence that begins with the member
        member = f"{phase.choice.text} on "
        same = before.startswith(member)
        return (
            None
            if same
            else f"got {phase.choice.text}, expected {before}. Pass the member and the keywords of that phase"
        )
    if not isinstance(before, dict) or not isinstance(before.get("settings"), dict):
        return f"got {before!r:.40} in {PLAN}, expected a phase. Start again with --overwrite"
    usual = json.loads(json.dumps(asdict(Settings())))
    now = in_form_of(before, phase.plan, phase.job.data)
    spell = as_typed if number == 1 else as_typed_in_phase
    words = difference(before | {"settings": usual | before["settings"]}, now, spell)
    return words if words is None or number == 1 else f"{words} in its --then"
