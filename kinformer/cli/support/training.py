"""Training for the commands: preparation, checks before the first step, the run with its progress."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kinformer.checkpoint.checkpoint import columns_of, keywords_of
from kinformer.cli.errors import ended_by, print_warnings, refuse_useless
from kinformer.cli.support.console import plain_console
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

FEW = 1000  # bytes of validation data below which a warning states the uncertainty of their metric
SPREAD = 2.5  # standard deviation of the bits of a byte, for a model that has begun to learn a text
FIRST = "phase-1"  # folder of the first phase, within the folder of the last phase


@dataclass(frozen=True)
class Job:
    """Data, budget and settings of a training; in a comparison the same for every member.

    data: the data.
    budget: steps or minutes to train.
    settings: the settings.
    device: the device to train on.
    tensorboard: write events for TensorBoard too.
    group: the processes that share the training, as torchrun starts them.
    columns: names and scales of the series columns that the first weights were trained on; None without them.
    """

    data: Data
    budget: Budget
    settings: Settings
    device: torch.device
    tensorboard: bool = False
    group: SingleProcess = SINGLE_PROCESS
    columns: ColumnScales | None = None

    def build(self, choice: MemberChoice) -> Model:
        """Build a new model; it reads a series with the column names and scales in `columns`.

        choice: the member.
        """
        model: Model = choice.build(self.settings.seed)
        if self.columns is not None:
            model.columns = self.columns
        return model

    @property
    def text(self) -> TextData:
        """The data, which must be a text."""
        assert isinstance(self.data, TextData)
        return self.data

    @property
    def measurement(self) -> str:
        """Description in words of the validation data that each measurement reads."""
        return self.data.describe_sample("valid", self.settings.length, self.settings.sample_bytes)

    @property
    def valid_bytes(self) -> int:
        """Number of bytes of validation data that each measurement reads, the same for every member."""
        return min(self.settings.sample_bytes, self.text.part("valid").bytes)

    def fix_measurements(self, models: Sequence[Model], budgets: Sequence[Budget] = ()) -> "Job":
        """Return the job with a fixed size and number of measurements on validation data.

        models: the models to train; the slowest one determines how much is measured.
        budgets: the budgets of the models if they differ; the smallest one is used.

        Call it before the first step. For data other than text, the job is returned unchanged. Errors: UserError if a
        model does not read the data.
        """
        if not isinstance(self.data, TextData):
            return self
        least = min(budgets, key=lambda budget: -budget.fraction_spent(1, 1.0), default=self.budget)
        with from_user(ValueError, LookupError):
            placed = [model.to(self.device) for model in models]
            return replace(self, settings=settle_measuring(placed, self.data, least, self.settings, self.group))

    def resume_measurements(self, folder: Path, model: Model) -> "Job":
        """Return the job with the size and number of measurements of the run that is resumed.

        folder: the folder of the run.
        model: the model.

        Errors: UserError if the run was started with other data, keywords or settings, or if a file is damaged.
        """
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
    """Read the data and build the job from the options of a command.

    source: the data source.
    steps: number of steps; None if the budget is in minutes.
    minutes: minutes of training, if `steps` is None.
    valid: path of separate validation data; a part of the data if None.
    device: name of the device; the default device if None.
    tensorboard: write events for TensorBoard too.
    group: the processes that share the training, as torchrun starts them.
    check_out: function that checks --out; it is called before the data is read, which may take long.
    **settings: fields of `Settings`.

    Errors: UserError for an invalid option and for data that cannot be read.
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
    """Refuse a member that does not read this kind of data, before any data is read.

    choice: the member.
    source: the data source.
    context: the context of the command; if given, a --length without effect on such data is refused too.

    Errors: UserError.
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
    """Refuse a --length that has no effect because the data or the model decides the length of rows.

    context: the context of the command.
    kind: the data or its class; None is accepted.

    Errors: UserError.
    """
    if kind is not None and not kind.sized:
        refuse_useless(context, f"on {kind.noun}, because the data or the member fixes the length of rows", "length")


def _build_unfitted(choice: MemberChoice, kind: type[Data]) -> Any | None:
    """The member without weights; None if it cannot be built before the data has set its keywords."""
    try:
        return build_without_numbers(choice)
    except UserError:
        if kind.keywords is Data.keywords:
            raise
        return None


def tell_split(job: Job) -> None:
    """Print on stderr how the data was split, and warn of very little validation data.

    job: the data and settings; only the first of several processes prints.

    Call it after all checks, so that no refused command prints it.
    """
    if not job.data.split or job.group.rank:
        return
    print(job.data.split, file=sys.stderr)
    if isinstance(job.data, TextData) and (few := job.data.part("valid").bytes) < FEW:
        off = 2 * SPREAD / few**0.5
        print(
            f"warning: the validation data has only {few:,} bytes, so bits per byte are uncertain by about {off:.1f}. "
            "Give --valid a longer text",
            file=sys.stderr,
        )


def start_folder(start: Path | None, out: Path, resume: bool) -> Path | None:
    """Return the folder whose weights a training starts from; None for new weights.

    start: the folder of --from; None without it.
    out: the folder of the run, which is returned if its training is resumed.
    resume: True if --resume is given.
    """
    return out if resume and RunFolder(out).step is not None else start


def fit_to_weights(choice: MemberChoice, job: Job, folder: Path | None) -> tuple[MemberChoice, Job]:
    """Fit the keywords of a member to the data, and the columns of a series to trained weights.

    choice: the member.
    job: the data and settings.
    folder: folder of the weights to start from; None for a new model.

    Returns the fitted member, and the job with the column names and scales of the weights. A series may have more
    columns than the weights know, so the keywords for columns come from the weights' folder. Errors: UserError if the
    folder cannot be read.
    """
    with from_user(ValueError, OSError):
        columns = None if folder is None else columns_of(folder)
        sizes = {} if folder is None or columns is None else keywords_of(folder)
    return fit_keywords(choice, job.data, sizes), replace(job, columns=columns)


def check_trainable(name: str, model: Any, job: Job) -> Decisions:
    """Check that a model can be trained on the data, and return the decisions of the training.

    name: name of the model, for messages.
    model: the model.
    job: the data and settings.

    Decisions are tested facts about the model that set its batches, such as whether its outputs depend on later tokens.
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
    """Train a model with its progress on stderr, and save the run in a folder.

    name: name of the training, for progress and messages.
    model: the model.
    job: the data and settings.
    folder: the folder of the run. A new folder is removed again if the training is refused.
    resume: continue the run in the folder, if there is one.
    decisions: the tested facts that `check_trainable` returned for the model; if None, the training tests them.

    Returns the history (all measurements) of the whole run. Errors: UserError.
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
        advice = "Give more --steps or --minutes to train further"
        return f"the run has ended after {done.step:,} steps, so there is nothing to do. {advice}"
    if isinstance(budget, StepBudget):
        return f"continues from step {done.step:,} of {budget.count:,}"
    whole = f", after {done.seconds / 60:.2g} of {budget.count:g} minutes" if isinstance(budget, MinuteBudget) else ""
    return f"continues from step {done.step:,}{whole}"


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
    """Train a model up to a fraction of its budget, and save the run in a folder.

    name: name of the training, for progress and messages.
    model: the model.
    job: the data and settings.
    folder: the folder of the run.
    resume: continue the run in the folder.
    until: fraction of the budget at which to stop, from the start of the run.
    decisions: the tested facts that `check_trainable` returned for the model; if None, the training tests them.

    The caller has locked the folder, and prints warnings. Returns the history of the whole run. Errors: UserError if a
    signal stops the training, a file is unreadable, the loss is not finite or the memory is too small.
    """
    first, new = not job.group.rank, not folder.exists()
    if first:
        make_folder(folder)
    try:
        model.to(job.device)
        with show(plain_console(stderr=True), name) as display, from_user(ValueError, LookupError):
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
        advice = "Use a smaller model, --batch or --length"
        raise UserError(f"{name}: out of memory on {job.device}. {advice}", FAILED) from error
    finally:
        if first and new and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def tensorboard_events(job: Job, folder: Path) -> Iterator[TensorBoardEvents | None]:
    """Enter a context with the TensorBoard events of a run; None if the job does not ask for them.

    job: the job.
    folder: the folder of the run; events go to its subfolder tensorboard.

    Errors: UserError if TensorBoard is not installed.
    """
    if not job.tensorboard:
        yield None
        return
    with from_user(ImportError):
        events = TensorBoardEvents(folder / "tensorboard")
    with closing(events):
        yield events


def default_device() -> torch.device:
    """Return the GPU if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def parse_device(name: str | None) -> torch.device:
    """Return the device with a name.

    name: the name, such as "cpu" or "cuda:1"; the GPU if there is one, otherwise the CPU, if None.

    Errors: UserError if this machine has no such device.
    """
    if name is None:
        return default_device()
    try:
        chosen = torch.device(name)
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"there is no device {name!r} on this machine. Give --device cpu, or cuda if it has a GPU"
        ) from error
    return chosen
