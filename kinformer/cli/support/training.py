"""Preparation of a training by the commands: its data, its settings, and checks before the first step."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from kinformer.bridge.family import default_keywords
from kinformer.bridge.hf_folder import is_hf_folder
from kinformer.bridge.load import load
from kinformer.checkpoint.checkpoint import built_by, changes_of, columns_of, is_pretrained, keywords_of
from kinformer.checkpoint.model_files import CONFIG
from kinformer.checkpoint.own_config import read_own_config
from kinformer.cli.errors import print_warnings, refuse_useless
from kinformer.cli.support.device_choice import parse_device
from kinformer.cli.support.loggers import OpenLogger
from kinformer.cli.support.run_folder import advice_instead_of_resuming, with_advice
from kinformer.cli.support.table_as_text import warn_of_table
from kinformer.cli.support.typed_options import as_typed
from kinformer.core.keywords import name_of
from kinformer.core.model import ColumnScales, Model
from kinformer.lab.cost.free_memory import build_without_numbers
from kinformer.lab.data.data import Data
from kinformer.lab.data.data_fits_model import refuse_unread
from kinformer.lab.data.resolve import DataSource
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice
from kinformer.lab.train.budget import Budget, MinuteBudget, StepBudget
from kinformer.lab.train.distributed import SINGLE_PROCESS, SingleProcess
from kinformer.lab.train.evaluate import settle_measuring
from kinformer.lab.train.loop import open_training_stream
from kinformer.lab.train.member_fit import check_readable, fit_keywords, fit_length, name_model
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.start_record import refuse_others
from kinformer.lab.train.startup_decisions import Decisions, decide

FEW = 1000  # bytes of validation data below which a warning states the uncertainty of their metric
FEW_ROWS = 10  # rows of validation or test data below which a warning says that results are not reliable
SPREAD = 2.5  # standard deviation of the bits of a byte, for a model that has begun to learn a text
FIRST = "phase-1"  # folder of the first phase, within the folder of the last phase


@dataclass(frozen=True)
class Job:
    """Data, budget and settings of a training; in a comparison the same for every member.

    data: the data.
    budget: steps or minutes to train.
    settings: the settings.
    device: the device to train on.
    loggers: functions that open the loggers of a training.
    group: the processes that share the training, as torchrun starts them.
    columns: names and scales of the series columns that the first weights were trained on; None without them.
    """

    data: Data
    budget: Budget
    settings: Settings
    device: torch.device
    loggers: tuple[OpenLogger, ...] = ()
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
    loggers: tuple[OpenLogger, ...] = (),
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
    loggers: functions that open the loggers of a training; only the first of several processes has loggers.
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
    if not group.rank:
        warn_of_table(source)
    with from_user(ValueError, OSError, ImportError), print_warnings():
        dataset = source.read(**({} if valid is None else {"valid": valid}))
    return Job(dataset, budget, parsed, where, () if group.rank else loggers, group)


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
            raise UserError(name_model(choice.text, model, error)) from error


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
    for text in _few_data(job.data):
        print(f"warning: {text}", file=sys.stderr)


def _few_data(data: Data) -> Iterator[str]:
    """Sentences about a split with too little data to trust a result on it."""
    if isinstance(data, TextData):
        if (few := data.part("valid").bytes) < FEW:
            off = 2 * SPREAD / few**0.5
            yield (
                f"the validation data has only {few:,} bytes, so bits per byte are uncertain by about {off:.1f}. Give "
                "--valid a longer text"
            )
        return
    for split, name in (("valid", "validation data"), ("test", "test data")):
        rows = getattr(data, split, None)
        if isinstance(rows, tuple) and len(rows) < FEW_ROWS:
            count = f"only {len(rows)} row{'s' if len(rows) > 1 else ''}" if rows else "no row"
            yield f"the {name} has {count}, so results on it are not reliable. Give more rows"


def start_folder(start: Path | None, out: Path, resume: bool) -> Path | None:
    """Return the folder whose weights a training starts from; None for new weights.

    start: the folder of --from; None without it.
    out: the folder of the run, which is returned if its training is resumed.
    resume: True if --resume is given.
    """
    return out if resume and RunFolder(out).step is not None else start


def fit_to_weights(choice: MemberChoice, job: Job, start: Path | None, folder: Path | None) -> tuple[MemberChoice, Job]:
    """Fit the keywords of a member to the data, and to the trained weights that it starts from.

    choice: the member.
    job: the data and settings.
    start: the folder of --from, or its .gguf file; None without it.
    folder: the folder whose weights are loaded: `start`, or a resumed run; None for a new model.

    Returns the fitted member, and the job with the column names and scales of the weights. A model of the same member
    in `start` gives the keywords that the choice leaves out. A series may have more columns than the weights know, so
    the keywords for columns come from the weights' folder. Weights that another library trained get a low learning
    rate, and a line on stderr names it. Errors: UserError if a folder cannot be read.
    """
    with from_user(ValueError, OSError):
        if start is not None:
            choice, job = _with_start(choice, job, start)
        columns = None if folder is None or _is_foreign(folder) else columns_of(folder)
        sizes = {} if folder is None or columns is None else keywords_of(folder)
    return fit_to_data(choice, job, sizes), replace(job, columns=columns)


def _is_foreign(path: Path) -> bool:
    return path.suffix.lower() == ".gguf" or is_hf_folder(path)


def _with_start(choice: MemberChoice, job: Job, start: Path) -> tuple[MemberChoice, Job]:
    """Return the choice with the keywords of the model in `start`, and the job with a rate for its weights."""
    if _is_foreign(start):
        record = load(start).member
        name, keywords, pretrained, changes = record.name, record.keywords, True, record.changes
    else:
        name, keywords, pretrained = built_by(start), keywords_of(start), is_pretrained(start)
        changes = changes_of(read_own_config(start / CONFIG))
    if name == name_of(choice.function):
        rows = job.data.longest_length(job.settings.length)
        usual = default_keywords(choice.function)  # left out, because some have no effect beside the given keywords
        keywords = {word: value for word, value in keywords.items() if value != usual.get(word)}
        if keywords.get("length") is not None and keywords["length"] < (rows or 0):
            del keywords["length"]
        choice = replace(choice, keywords={**keywords, **choice.keywords}, changes=changes)
    settings = job.settings.fine_tuning() if pretrained else job.settings
    if settings is not job.settings and not job.group.rank:
        print(f"lr={settings.lr:g}, because the weights are pretrained; --lr sets another", file=sys.stderr)
    return choice, replace(job, settings=settings)


def fit_to_data(choice: MemberChoice, job: Job, sizes: Mapping[str, Any] = MappingProxyType({})) -> MemberChoice:
    """Fit the keywords of a member to the data and to the length of its rows.

    A line on stderr reports a changed length.

    choice: the member; its given keywords stay.
    job: the data and settings.
    sizes: keywords that replace the data's.
    """
    fitted = fit_keywords(choice, job.data, sizes)
    with from_user(ValueError):
        rows = job.data.longest_length(job.settings.length)
    return fit_and_tell_length(fitted, rows, job.settings.length)


def fit_and_tell_length(choice: MemberChoice, rows: int | None, length: int) -> MemberChoice:
    """Return a member whose learned positions suffice for rows of some length.

    A line on stderr reports a changed keyword.

    choice: the member; its given keywords stay.
    rows: tokens of the longest row; None for data without rows of tokens.
    length: the value of --length.
    """
    fitted = fit_length(choice, rows)
    if fitted is not choice:
        source = "from --length" if rows == length else "the longest row of the data"
        print(f"{choice.text}: length={rows}, {source}", file=sys.stderr)
    return fitted


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
        raise UserError(name_model(name, model, error)) from error
    return decisions
