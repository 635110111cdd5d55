"""A training as the commands run it: everything that may be wrong is said before the first step."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from kinformer.checkpoint.checkpoint import columns_of, keywords_of
from kinformer.cli.errors import ended_by, print_warnings, refuse_useless
from kinformer.cli.support.run_folder import (
    advice_instead_of_resuming,
    make_folder,
    warn_of_outdated_files,
    with_advice,
)
from kinformer.cli.support.typed_options import as_typed
from kinformer.core.model import ColumnScales, Model
from kinformer.lab.cost.free_memory import build_without_numbers
from kinformer.lab.data.data import Data
from kinformer.lab.data.data_fits_model import refuse_unread
from kinformer.lab.data.resolve import DataSource
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import FAILED, UserError, from_user
from kinformer.lab.member_choice import MemberChoice
from kinformer.lab.train.budget import Budget, MinuteBudget, StepBudget
from kinformer.lab.train.distributed import SINGLE_PROCESS, SingleProcess
from kinformer.lab.train.evaluate import settle_measuring
from kinformer.lab.train.history import History
from kinformer.lab.train.loop import TrainingStopped, open_training_stream
from kinformer.lab.train.member_fit import check_readable, fit_keywords
from kinformer.lab.train.out_of_memory import is_out_of_memory
from kinformer.lab.train.progress import show
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.start_record import refuse_others
from kinformer.lab.train.startup_decisions import Decisions, decide
from kinformer.lab.train.tensorboard_events import TensorBoardEvents
from kinformer.lab.train.train import train

FEW = 1000  # bytes to watch, below which a warning says what their mean is worth
SPREAD = 2.5  # bits by which what a byte takes is spread about its mean, of texts that a model has begun to learn
FIRST = "phase-1"  # the folder of the first phase, within that of the last


@dataclass(frozen=True)
class Job:
    """What is the same for every member of a comparison.

    columns: the names and scales of the weights that a training starts from or goes on with, if they keep any.
    """

    data: Data
    budget: Budget
    settings: Settings
    device: torch.device
    tensorboard: bool = False
    group: SingleProcess = SINGLE_PROCESS
    columns: ColumnScales | None = None

    def build(self, choice: MemberChoice) -> Model:
        """A new model, which reads a series by the columns of the weights that it starts from."""
        model: Model = choice.build(self.settings.seed)
        if self.columns is not None:
            model.columns = self.columns
        return model

    @property
    def text(self) -> TextData:
        """The data where it is a text."""
        assert isinstance(self.data, TextData)
        return self.data

    @property
    def measurement(self) -> str:
        """What of valid is measured, in words."""
        return self.data.describe_sample("valid", self.settings.length, self.settings.sample_bytes)

    @property
    def valid_bytes(self) -> int:
        """How many bytes of valid are measured, the same for every member."""
        return min(self.settings.sample_bytes, self.text.part("valid").bytes)

    def fix_measurements(self, models: Sequence[Model], budgets: Sequence[Budget] = ()) -> "Job":
        """The same with its measurements fixed before the first step, the same for all of these models.

        Where each has a budget of its own, in steps, it is the smallest that says how much is measured.
        """
        if not isinstance(self.data, TextData):
            return self
        least = min(budgets, key=lambda budget: -budget.fraction_spent(1, 1.0), default=self.budget)
        with from_user(ValueError, LookupError):
            placed = [model.to(self.device) for model in models]
            return replace(self, settings=settle_measuring(placed, self.data, least, self.settings, self.group))

    def resume_measurements(self, folder: Path, model: Model) -> "Job":
        """The same with the measurements of the run that it goes on with; UserError where that was begun otherwise."""
        with with_advice(advice_instead_of_resuming(folder)), from_user(ValueError, LookupError):
            state = RunFolder(folder).state()
            refuse_others(folder, state["begun"], model, self.data, self.settings, as_typed)
            return replace(self, settings=replace(self.settings, **state["measuring"]))


def prepare(
    source: DataSource,
    steps: int | None,
    minutes: float | None,
    valid: str | None = None,
    device: str | None = None,
    tensorboard: bool = False,
    group: SingleProcess = SINGLE_PROCESS,
    check_out: Callable[[], None] = lambda: None,
    **settings: Any,
) -> Job:
    """The data, the budget and the settings that options give; UserError where one makes no sense.

    check_out: called once the options are checked, before any data is read, which may take long.
    """
    where = parse_device(device)
    with from_user(ValueError):
        budget: Budget = StepBudget(steps) if steps is not None else MinuteBudget(minutes or 0.0)
        parsed = Settings(**settings)
    check_out()
    with from_user(ValueError, OSError, ImportError), print_warnings():
        dataset = source.read(**({} if valid is None else {"valid": valid}))
    return Job(dataset, budget, parsed, where, tensorboard and not group.rank, group)


def refuse_kind(choice: MemberChoice, source: DataSource, context: Any = None) -> None:
    """Refuse, before any data is read, a member that does not read this kind of data.

    context: the context of the command; if given, a --length without effect on such data is refused too.
    """
    kind = source.kind
    if context is not None:
        refuse_length(context, kind)
    if kind is not None and (model := _build_unfitted(choice, kind)) is not None:
        try:
            refuse_unread(model, kind)
        except ValueError as error:
            raise UserError(f"{choice.text}: {error}") from error


def refuse_length(context: Any, kind: type[Data] | Data | None) -> None:
    """Refuse a --length that has no effect because the data or the model decides the length of rows."""
    if kind is not None and not kind.sized:
        refuse_useless(context, f"on {kind.noun}, because the data or the member fixes the length of rows", "length")


def _build_unfitted(choice: MemberChoice, kind: type[Data]) -> Any | None:
    """The member without numbers; None also where it does not come about before the data has decided its keywords."""
    try:
        return build_without_numbers(choice)
    except UserError:
        if kind.keywords is Data.keywords:
            raise
        return None


def tell_split(job: Job) -> None:
    """Say what was split how, once nothing is refused any more; one process of many does."""
    if not job.data.split or job.group.rank:
        return
    print(job.data.split, file=sys.stderr)
    if isinstance(job.data, TextData) and (few := job.data.part("valid").bytes) < FEW:
        off = 2 * SPREAD / few**0.5
        print(
            f"warning: {few:,} bytes to watch are few: chance alone moves their bits per byte by {off:.1f} or so; give "
            "--valid a longer text",
            file=sys.stderr,
        )


def start_folder(start: Path | None, out: Path, resume: bool) -> Path | None:
    """The folder of the weights with which a training begins: its own run if it goes on, or else `start`."""
    return out if resume and RunFolder(out).step is not None else start


def fit_to_weights(choice: MemberChoice, job: Job, folder: Path | None) -> tuple[MemberChoice, Job]:
    """The member as it fits the data, and the job, which reads a series by the columns of the weights in a folder.

    A file may have more columns than the weights know, so the sizes that follow from columns are those of the weights.
    """
    with from_user(ValueError, OSError):
        columns = None if folder is None else columns_of(folder)
        sizes = {} if folder is None or columns is None else keywords_of(folder)
    return fit_keywords(choice, job.data, sizes), replace(job, columns=columns)


def check_trainable(name: str, model: Any, job: Job) -> Decisions:
    """Check a model and data before a training; return the training's decisions.

    Errors: UserError, which names the model, for everything that the training would refuse.
    """
    check_readable(name, model, job.data, job.settings)
    try:
        decisions = decide(model.to(job.device), job.data, job.settings, job.group)
        open_training_stream(model, job.data, job.settings, decisions)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error
    return decisions


def train_member(
    name: str, model: Any, job: Job, folder: Path, *, resume: bool = False, decisions: Decisions | None = None
) -> History:
    """Train a model with its progress on stderr, and keep the run in a folder; a refusal leaves none behind.

    decisions: those that `check_trainable` has made of the model.
    """
    if resume and RunFolder(folder).step is not None:
        try:
            done = History.read(folder, RunFolder(folder).state()["metrics"])
        except (ValueError, LookupError, OSError) as error:
            raise UserError(f"{error}; {advice_instead_of_resuming(folder)}") from error
        print(f"{name}: {_resume_text(done, job.budget)}", file=sys.stderr)
    with print_warnings(), warn_of_outdated_files(folder), with_advice(advice_instead_of_resuming(folder)):
        return train_until(name, model, job, folder, resume=resume, decisions=decisions)


def _resume_text(done: History, budget: Budget) -> str:
    if budget.fraction_spent(done.step, done.seconds) >= 1:
        advice = "give more --steps or --minutes to go on"
        return f"it already has {done.step:,} steps, and there is nothing to do; {advice}"
    if isinstance(budget, StepBudget):
        return f"goes on from step {done.step:,} of {budget.count:,}"
    whole = f", after {done.seconds / 60:.2g} of {budget.count:g} minutes" if isinstance(budget, MinuteBudget) else ""
    return f"goes on from step {done.step:,}{whole}"


def train_until(
    name: str,
    model: Any,
    job: Job,
    folder: Path,
    *,
    resume: bool,
    until: float = 1.0,
    decisions: Decisions | None = None,
) -> History:
    """Train up to a fraction of the budget; the caller has claimed the folder and handles warnings."""
    first, new = not job.group.rank, not folder.exists()
    if first:
        make_folder(folder)
    try:
        model.to(job.device)
        with show(Console(stderr=True), name) as display, from_user(ValueError, LookupError):
            with tensorboard_events(job, folder) as on_metrics:
                return train(
                    model,
                    job.data,
                    job.budget,
                    job.settings,
                    folder=folder,
                    show=display,
                    on_metrics=on_metrics,
                    resume=resume,
                    until=until,
                    group=job.group,
                    claimed=True,
                    decisions=decisions,
                )
    except KeyboardInterrupt as stop:
        raise UserError(str(stop) or "stopped", ended_by(stop)) from stop
    except (OSError, TrainingStopped) as error:
        raise UserError(f"{name}: {error}", FAILED) from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        advice = "give a smaller model, batch or length"
        raise UserError(f"{name}: there is too little memory on {job.device}; {advice}", FAILED) from error
    finally:
        if first and new and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def tensorboard_events(job: Job, folder: Path) -> Iterator[TensorBoardEvents | None]:
    """What else hears the lines of metrics.jsonl: TensorBoard's events, where they are wanted."""
    if not job.tensorboard:
        yield None
        return
    with from_user(ImportError):
        events = TensorBoardEvents(folder / "tensorboard")
    with closing(events):
        yield events


def default_device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def parse_device(name: str | None) -> torch.device:
    """The device of a name like "cpu" or "cuda:1", the GPU where there is one unless named; UserError for no such."""
    if name is None:
        return default_device()
    try:
        chosen = torch.device(name)
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"there is no device {name!r} here; give --device cpu, or cuda where there is a GPU") from error
    return chosen
