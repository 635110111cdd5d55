"""The training loop, plain: a batch, a step, now and then a measurement and a save."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any, cast

import torch

from kinformer.checkpoint.atomic_files import crc32
from kinformer.checkpoint.checkpoint import CheckpointError, columns_of, member_record
from kinformer.core.model import Model
from kinformer.lab.data.batches import Batches, device_of
from kinformer.lab.data.data import Data, Stream
from kinformer.lab.data.data_fits_model import open_stream
from kinformer.lab.data.lanes import Lanes
from kinformer.lab.data.resumable_stream import ResumableStream, StepError
from kinformer.lab.data.support.state_tensors import restore_state, state_tensors
from kinformer.lab.data.text import TextData
from kinformer.lab.train.activation_checkpointing import checkpointed
from kinformer.lab.train.budget import Budget
from kinformer.lab.train.distributed import SINGLE_PROCESS, SingleProcess
from kinformer.lab.train.evaluate import Measurement, evaluate, evaluate_batches, settle_measuring
from kinformer.lab.train.folder_lock import LOCKS, lock_folder
from kinformer.lab.train.history import METRICS, History, Metrics, Point
from kinformer.lab.train.micro_batches import cut, warn_across_rows
from kinformer.lab.train.optimiser_step import Learner
from kinformer.lab.train.progress import ProgressDisplay, Status
from kinformer.lab.train.reads_ahead import warn_ahead
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.start_record import refuse_others, start_record
from kinformer.lab.train.startup_decisions import Decisions, decide, saved_decisions
from kinformer.lab.train.training_interrupt import TrainingInterrupt, catch_signals
from kinformer.lab.train.training_tensors import optimiser_tensors, random_tensors, restore_optimiser, restore_random

EVERY = 10.0  # seconds between saves
MetricsCallback = Callable[[dict[str, Any]], None]


class TrainingStopped(RuntimeError):
    """A training that cannot go on, in one line that says what happened and what is kept."""


class Training:
    """A training under way: the model, its optimiser, the states that it carries, and what it did so far.

    decisions: those of the resumed run, or those made before a new training; None makes them.

    ValueError where the data is not what the model reads, and where the model reads ahead or cannot go on.
    """

    def __init__(
        self,
        model: Any,
        data: Data | Batches,
        budget: Budget,
        settings: Settings,
        run: RunFolder | None,
        show: ProgressDisplay,
        on_metrics: MetricsCallback,
        group: SingleProcess,
        decisions: Decisions | None = None,
    ) -> None:
        self.model, self.data, self.budget, self.settings = model, data, budget, settings
        self.run, self.show, self.on_metrics, self.group = run, show, on_metrics, group
        self.device = device_of(model)
        model.train()
        self.decisions = decisions or decide(model, data, settings, group)
        self.stream: Stream = open_training_stream(model, data, settings, self.decisions)
        if isinstance(data, Data):
            model.metric = data.metric(model)
        self.nats = math.log(2) * (data.bytes_per_token if isinstance(data, Data) else 1)
        self._check_first_batch()
        self.learner = Learner(model, self.stream, settings, group)
        if isinstance(data, TextData):
            self.settings = settle_measuring([model], data, budget, settings, group)
        self.history = History(model.metric)
        self.metrics: Metrics | None = None
        self.smooth: float | None = None
        self.saved = monotonic()

    def _check_first_batch(self) -> None:
        """ValueError where there is no first batch, or it cannot be cut: before any file is touched."""
        if isinstance(self.stream, ResumableStream) and self.group.size > 1:
            raise ValueError("batches that follow from what a model does are made in one process; leave torchrun out")
        try:
            with _seeded(self.settings.seed, self.device):
                cut(self.group.share(self.stream.at(0), self.settings.accumulate), self.settings.accumulate)
        except StepError as stop:
            raise ValueError(f"{stop}; {stop.advice}") from stop

    def go_on(self, stopped: Callable[[], int | None], until: float) -> None:
        """Steps until a part of the budget is spent, measured and saved when it is time; a signal saves, and stops."""
        measures, spent = self.settings.measures, self.fraction_spent
        if spent >= 1 and not self.history.points:  # its only measurement failed
            self.measure()
        while spent < until:
            self.step(spent)
            before, spent = spent, self.fraction_spent
            self.report(spent)
            due = spent >= 1 or int(spent * measures) > int(before * measures)
            if due:
                self.measure()
            signal = int(self.group.reduce_max(stopped() or 0))
            if due or signal or spent >= until or self.group.reduce_max(monotonic() - self.saved) >= EVERY:
                self.save()
            if signal:
                raise TrainingInterrupt(
                    f"stopped at step {self.history.step:,}; the weights are kept{self._folder_note}", signal
                )

    @property
    def fraction_spent(self) -> float:
        """The part of the budget that is spent."""
        return self.budget.fraction_spent(self.history.step, self.history.seconds)

    def step(self, spent: float) -> None:
        """One optimiser step, at a point of the budget; TrainingStopped, with all that was learned before it saved."""
        began, done = monotonic(), self.history
        try:
            learned = self.learner.step(done.step, spent)
        except StepError as stop:
            raise TrainingStopped(f"{stop}: {self._save_and_describe()}; {stop.advice}") from stop
        parts = learned.parts
        now = parts.get("nll", parts["total"]) / (self.nats if self.model.metric.unit == "bits" else 1)
        self.smooth = now if self.smooth is None else 0.95 * self.smooth + 0.05 * now
        done.step += 1
        done.tokens += learned.tokens
        done.seconds += self.group.reduce_max(monotonic() - began)
        other_parts = {name: value for name, value in parts.items() if name not in ("nll", "total")}
        line = {"step": done.step, "loss": now, "lr": learned.lr, "norm": learned.norm}
        self.log_line(
            {**line, **({"parts": other_parts} if other_parts else {}), "tokens": done.tokens, "seconds": done.seconds}
        )

    def _save_and_describe(self) -> str:
        """Save what there is, and say so."""
        if self.run is None:
            return "the model holds the weights before it"
        if self.history.step:
            self.save()
        return f"the weights before it are{self._folder_note}" if self.history.step else "nothing was learned before it"

    @property
    def _folder_note(self) -> str:
        return f" in {self.run.folder}" if self.run else ""

    # What is told and measured ---------------------------------------------------------------------------------------

    def log_line(self, line: dict[str, Any]) -> None:
        """A line of the run's metrics."""
        if self.metrics is not None:
            self.metrics.write(line)
        self.on_metrics(line)

    def report(self, spent: float) -> None:
        """Show where the training stands."""
        done, name = self.history, self.model.metric.name
        valid = done.points[-1].valid if done.points else None
        counted = self.data.counted if isinstance(self.data, Data) else "tokens"
        self.show.status(Status(done.step, spent, done.seconds, done.tokens, self.smooth or 0.0, valid, name, counted))

    def measure(self) -> None:
        """The metric on valid; the best model so far is kept beside the last one, TrainingStopped where it is none."""
        try:
            score, done = self.score(), self.history
        except ValueError:  # an environment fails in its own time
            self._save_and_describe()
            raise
        if not math.isfinite(score.value):
            state = (
                f"what was kept before is{self._folder_note}"
                if self.run and self.run.step
                else "nothing was kept before"
            )
            why = f"{score.metric.name} on valid became {score.value} at step {done.step:,}"
            raise TrainingStopped(f"{why}: {state}; try a lr below {self.learner.recipe.peak:g}")
        point = Point(done.step, done.seconds / 60, self.smooth or 0.0, score.value, score.extras)
        done.points.append(point)
        if self.run is not None and done.best is point:
            self.run.best(self.model, done.step)
        extras = {"others": point.extras} if point.extras else {}
        line = {"valid": point.valid, **extras, "train": point.train, "after": point.step, "minutes": point.minutes}
        self.log_line(line)

    def score(self) -> Measurement:
        """The model's metric on valid."""
        if not isinstance(self.data, TextData):
            return evaluate_batches(self.model, cast(Batches, self.stream).validation_batches, self.group)
        part, limit = self.data.part("valid"), self.settings.sample_bytes
        self.show.begin_measuring(min(part.bytes, limit))
        return evaluate(self.model, part, self.settings.length, limit, group=self.group, probe=False)

    # What is kept ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new run in the folder."""
        if self.run is not None:
            self.run.folder.mkdir(parents=True, exist_ok=True)
            self.run.clear()
            self.metrics = self.run.metrics(self.model.metric, about=self._header_entries)

    @property
    def _header_entries(self) -> dict[str, str]:
        """Further entries of the first line of the metrics."""
        return {"data": self.data.name} if isinstance(self.data, Data) else {}

    def save(self) -> None:
        """Keep the model and all that the training needs to go on as if it had never stopped."""
        if self.run is None or self.metrics is None:
            return
        carried, places = state_tensors(self.group.gather_state(self.learner.state))
        state = {
            "step": self.history.step,
            "smooth": self.smooth,
            "metrics": self.metrics.on_disk(),
            "metrics_crc32": self.metrics.sum,
            "measuring": {"measures": self.settings.measures, "valid_bytes": self.settings.valid_bytes},
            "state": places,
            "begun": start_record(self.model, self.data, self.settings),
            "decisions": asdict(self.decisions),
        }
        tensors = optimiser_tensors(self.model, self.learner.optimiser) | random_tensors(self.device) | carried
        if isinstance(self.stream, ResumableStream):
            tensors |= self.stream.saved_tensors()
        self.run.save(self.model, self.history.step, state, tensors)
        self.saved = monotonic()

    def close(self) -> None:
        """Leave the files to others."""
        if self.metrics is not None:
            self.metrics.close()

    def restore(self) -> None:
        """Go on from what `save` kept; CheckpointError where a part of it is spoiled."""
        run = cast(RunFolder, self.run)
        state, tensors = run.state(), run.tensors(self.model)
        try:
            history = History.read(run.folder, state["metrics"])
        except (ValueError, OSError) as error:
            raise CheckpointError(str(error)) from error
        if history.step != state["step"]:
            raise CheckpointError(
                f"{run.folder}/metrics.jsonl ends at step {history.step:,}, and the checkpoint is of step "
                f"{state['step']:,}; put the whole file back"
            )
        if crc32(run.folder / METRICS, state["metrics"]) != state["metrics_crc32"]:
            raise CheckpointError(f"{run.folder / METRICS} is not what was written; put the whole file back")
        restore_optimiser(self.model, self.learner.optimiser, tensors)
        restore_random(self.device, tensors)
        self.history, self.smooth = history, state["smooth"]
        if isinstance(self.stream, Lanes) and state["state"] is not None:
            like = self.stream.state_before(self.model, history.step, None)
            self.learner.state = self.group.own_rows(restore_state(like, tensors, state["state"], self.device))
        if isinstance(self.stream, ResumableStream):
            self.stream.restore(tensors)
        run.tidy()  # nothing in the folder has changed before, so that a refusal leaves it as it was
        self.metrics = run.metrics(self.model.metric, state["metrics"], self._header_entries)


def open_training_stream(model: Model, data: Data | Batches, settings: Settings, decisions: Decisions) -> Stream:
    """Open the stream of batches that a training with these settings learns from.

    Errors: ValueError if the model does not read data of this kind, or if the data does not fit the model.
    """
    if isinstance(data, TextData):
        data = replace(data, packed=decisions.packs_documents)
    return open_stream(model, data, settings.batch, settings.length, settings.seed, settings.sample_bytes)


def train(
    model: Model,
    data: Data | Batches,
    budget: Budget,
    settings: Settings | None = None,
    *,
    folder: Path | None = None,
    show: ProgressDisplay | None = None,
    on_metrics: MetricsCallback | None = None,
    resume: bool = False,
    until: float = 1.0,
    group: SingleProcess = SINGLE_PROCESS,
    claimed: bool = False,
    decisions: Decisions | None = None,
) -> History:
    """Train a model on data; a folder, where one is given, keeps the run (`lab/train/run_folder.py` says how).

    The last weights are saved every ten seconds and at the end, and the best by the metric on valid in `best`. A model
    that asks for `lanes` is trained on them, its state carried and detached; another on random windows. Pairs with a
    side longer than a window are left out, and a warning says how many. After every optimiser step each module that has
    `after_step(progress, stats)` is called with its own stats, and `on_metrics` is given each line of metrics.jsonl.

    With `resume` a training goes on from the last save in the folder, on a CPU to the same weights as if it had never
    stopped; where there is none it begins anew, and a warning says so. A larger budget goes on with what has ended: the
    schedule is then that of the new length. It pauses once the part `until` of the budget is spent, and is saved.
    `decisions` are those that the caller has made of the model for a training that begins; it makes them unless given.

    Ctrl-C and SIGTERM save what there is and raise Stopped, a KeyboardInterrupt; a loss or gradient that is not finite
    raises TrainingStopped before it touches a weight, and a full disk raises OSError: what was saved before is kept.
    Raises ValueError where a text is too short, for a model that learns what comes next and reads ahead or cannot go
    on. Raises ResumeError, which names the difference, for a run that started with other settings or data, and
    FolderInUse for a folder that another process trains into, unless the caller has `claimed` it.
    """
    with nullcontext() if folder is None or claimed else lock_folder(folder, group):
        return _train(
            model, data, budget, settings or Settings(), folder, show, on_metrics, resume, until, group, decisions
        )


def _train(
    model: Model,
    data: Data | Batches,
    budget: Budget,
    settings: Settings,
    folder: Path | None,
    show: ProgressDisplay | None,
    on_metrics: MetricsCallback | None,
    resume: bool,
    until: float,
    group: SingleProcess,
    decisions: Decisions | None,
) -> History:
    """Train a model; the caller has claimed the folder, if there is one."""
    run = None if folder is None else group.run(folder)
    if run is None and resume:
        raise ValueError("resume=True goes on with a run in a folder, and none is given")
    going_on = not group.reduce_max(not (resume and run is not None and run.step is not None))
    if run is not None and going_on:
        settings, decisions = _restore_run(run, model, data, settings)  # before it is spread over processes
    training = Training(
        model, data, budget, settings, run, show or ProgressDisplay(), on_metrics or _ignore_metrics, group, decisions
    )
    warn_ahead(model, training.decisions.reads_ahead)
    warn_across_rows(model, settings.accumulate, group.size)
    if isinstance(data, Data):
        group.refuse_few(settings.batch, settings.accumulate)
        _note_data(model, data, settings.length)
    if run is not None:
        member_record(model)
    if resume and not going_on:
        has_files = folder is not None and any(path.name not in LOCKS for path in Path(folder).glob("*"))
        content = "holds no whole checkpoint to go on from" if has_files else "holds nothing yet"
        warnings.warn(f"{folder} {content}: the training begins anew", stacklevel=3)
    recomputation = checkpointed(model) if settings.checkpointing else nullcontext()
    with (
        catch_signals(group.size > 1) as stopped,
        _seeded(settings.seed, training.device),
        recomputation,
        closing(training),
    ):
        training.restore() if going_on else training.begin()
        training.go_on(stopped, until)
    return training.history


def _restore_run(
    run: RunFolder, model: Model, data: Data | Batches, settings: Settings
) -> tuple[Settings, Decisions | None]:
    """Load the weights and columns of a run into the model; return the settings of its start, and its decisions."""
    state = run.state()
    refuse_others(run.folder, state["begun"], model, data, settings)
    run.restore(model)
    model.columns = columns_of(run.folder)  # the weights learned by these scales, whatever the model had before
    return replace(settings, **state["measuring"]), saved_decisions(state)


def _note_data(model: Model, data: Data, length: int) -> None:
    """Let the model know what it learns from, and warn of what it does not see."""
    model.trained_length, model.trained_on = data.longest_length(length), data.name
    model.tokenizer, model.labels = data.tokenizer, data.labels
    data.store_scales(model)
    if left_out := data.left_out(length):
        warnings.warn(left_out, stacklevel=4)


def _ignore_metrics(line: dict[str, Any]) -> None:
    """Do nothing with a line of metrics."""


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """What chance there is in training (dropout, hidden tokens) follows the seed, and chance elsewhere does not."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
