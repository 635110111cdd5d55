"""The training loop: a batch, an optimiser step, and from time to time a measurement and a save."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from time import monotonic
from typing import Any, cast

import torch

from kinformer.checkpoint.atomic_files import crc32
from kinformer.checkpoint.model_files import METRICS, CheckpointError
from kinformer.checkpoint.tokenizer import BYTES
from kinformer.core.model import Model
from kinformer.lab.data.batches import Batches, device_of
from kinformer.lab.data.data import Data, Stream
from kinformer.lab.data.data_fits_model import open_stream
from kinformer.lab.data.lanes import Lanes
from kinformer.lab.data.resumable_stream import ResumableStream, StepError
from kinformer.lab.data.support.state_tensors import restore_state, state_tensors
from kinformer.lab.data.text import TextData
from kinformer.lab.data.token_ids import per_token
from kinformer.lab.train.budget import Budget
from kinformer.lab.train.distributed import SingleProcess
from kinformer.lab.train.evaluate import Measurement, evaluate, evaluate_batches, settle_measuring
from kinformer.lab.train.history import History, Metrics, Point
from kinformer.lab.train.lora_adapters import adapter_tensors, merged, restore_adapters
from kinformer.lab.train.micro_batches import cut
from kinformer.lab.train.optimiser_step import Learner
from kinformer.lab.train.progress import ProgressDisplay, Status
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.start_record import start_record
from kinformer.lab.train.startup_decisions import Decisions, decide
from kinformer.lab.train.training_interrupt import TrainingInterrupt
from kinformer.lab.train.training_tensors import optimiser_tensors, random_tensors, restore_optimiser, restore_random

EVERY = 10.0  # seconds between saves, unless they would take more than SHARE of the time
SHARE = 0.05  # largest fraction of the time for saves
MetricsCallback = Callable[[dict[str, Any]], None]


class TrainingStopped(RuntimeError):
    """Error of a training that cannot continue; its one line names the reason and the saved files."""


class Training:
    """A training in progress: the model, its optimiser, its batches, its history and its run folder.

    model: the model to train.
    data: the training and validation data.
    budget: length of the training.
    settings: settings of the training.
    run: the run folder, or None to save nothing.
    show: display of the progress.
    on_metrics: called with each line of the metrics.
    group: the processes that share the training.
    decisions: facts about the model that are known from earlier tests, as in a resumed run (`Decisions`); None tests
        the model.

    Errors: ValueError if the model does not read such data, or if it predicts the next token but cannot decode.
    ValueError if its outputs depend on later tokens although no part declares it.
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
        elif getattr(model, "vocab", BYTES) != BYTES:  # tokens of the user's own, which are no bytes
            model.metric = per_token(model.metric)
        self.nats = math.log(2) * (data.bytes_per_token if isinstance(data, Data) else 1)
        self._check_first_batch()
        self.learner = Learner(model, self.stream, settings, group)
        if isinstance(data, TextData):
            self.settings = settle_measuring([model], data, budget, settings, group)
        self.history = History(model.metric)
        self.metrics: Metrics | None = None
        self.smooth: float | None = None
        self.next_save = monotonic() + EVERY

    def _check_first_batch(self) -> None:
        """Raise ValueError if there is no first batch, or it cannot be split. No file is touched before this check."""
        if isinstance(self.stream, ResumableStream) and self.group.size > 1:
            raise ValueError(
                "batches that depend on the model's actions need a training in one process; start it without torchrun"
            )
        try:
            with seeded(self.settings.seed, self.device):
                cut(self.group.share(self.stream.at(0), self.settings.accumulate), self.settings.accumulate)
        except StepError as stop:
            raise ValueError(f"{stop}; {stop.advice}") from stop

    def go_on(self, stopped: Callable[[], int | None], until: float) -> None:
        """Take optimiser steps until the fraction `until` of the budget is spent; measure and save when due.

        After a signal such as Ctrl-C it saves the training and raises TrainingInterrupt.

        stopped: returns the number of a received signal, or None.
        until: fraction of the budget.
        """
        measures, spent = self.settings.measures, self.fraction_spent
        if spent >= 1 and not self.history.points:  # its only measurement failed
            self.measure()
        while spent < until:
            self.step(spent)
            before, spent = spent, self.fraction_spent
            due = spent >= 1 or int(spent * measures) > int(before * measures)
            if due:
                self.measure()
            self.report(spent)
            signal = int(self.group.reduce_max(stopped() or 0))
            if due or signal or spent >= until or self.group.reduce_max(self.next_save - monotonic()) <= 0:
                self.save()
            if signal:
                raise TrainingInterrupt(
                    f"stopped at step {self.history.step:,}; the weights are kept{self._folder_note}", signal
                )

    @property
    def fraction_spent(self) -> float:
        """The fraction of the budget that is spent."""
        return self.budget.fraction_spent(self.history.step, self.history.seconds)

    def step(self, spent: float) -> None:
        """Take one optimiser step at the fraction `spent` of the budget.

        Errors: TrainingStopped if the step fails; the weights before it are saved.
        """
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
        """Save the training if it has a folder, and return a text about it."""
        if self.run is None:
            return "the model keeps the weights before this step"
        if not self.history.step:
            return "no step was taken before"
        self.save()
        return f"the weights before this step are saved{self._folder_note}"

    @property
    def _folder_note(self) -> str:
        return f" in {self.run.folder}" if self.run else ""

    # Metrics and measurements ----------------------------------------------------------------------------------------

    def log_line(self, line: dict[str, Any]) -> None:
        """Write a line to `metrics.jsonl`, and pass it to `on_metrics`.

        line: a step or a measurement.
        """
        if self.metrics is not None:
            self.metrics.write(line)
        self.on_metrics(line)

    def report(self, spent: float) -> None:
        """Show the progress of the training.

        spent: fraction of the budget that is spent.
        """
        done, name = self.history, self.model.metric.name
        valid, measured = (done.points[-1].valid, done.points[-1].step) if done.points else (None, 0)
        counted = self.data.counted if isinstance(self.data, Data) else "tokens"
        self.show.status(
            Status(done.step, spent, done.seconds, done.tokens, self.smooth or 0.0, valid, name, counted, measured)
        )

    def measure(self) -> None:
        """Measure the metric on validation data, and save the model if it is the best so far.

        Errors: TrainingStopped if the metric is not finite.
        """
        try:
            score, done = self.score(), self.history
        except ValueError:  # an environment may fail at any time
            self._save_and_describe()
            raise
        if not math.isfinite(score.value):
            state = (
                f"the previous save is{self._folder_note}"
                if self.run and self.run.step
                else "no weights were saved before"
            )
            why = f"{score.metric.name} on validation data became {score.value} at step {done.step:,}"
            raise TrainingStopped(f"{why}: {state}; {self.learner.advice_on_overflow}")
        point = Point(done.step, done.seconds / 60, self.smooth or 0.0, score.value, score.extras)
        done.points.append(point)
        if self.run is not None and done.best is point:
            with merged(self.model):
                self.run.best(self.model, done.step)
        extras = {"others": point.extras} if point.extras else {}
        line = {"valid": point.valid, **extras, "train": point.train, "after": point.step, "minutes": point.minutes}
        self.log_line(line)

    def score(self) -> Measurement:
        """Evaluate the model on validation data."""
        if not isinstance(self.data, TextData):
            # of batches with marked answers, such as texts with a prompt, the model's own metric is the main one
            main = getattr(type(self.model), "metric", None) if isinstance(self.data, Batches) else None
            return evaluate_batches(self.model, cast(Batches, self.stream).validation_batches, self.group, main)
        part, limit = self.data.part("valid"), self.settings.sample_bytes
        unit = part.unit if part.widths is None else "bytes"
        self.show.begin_measuring(min(part.bytes, limit), unit)
        return evaluate(self.model, part, self.settings.length, limit, group=self.group, probe=False)

    # Saving ----------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a new run in the run folder: remove the files of an earlier training and open `metrics.jsonl`."""
        if self.run is not None:
            self.run.folder.mkdir(parents=True, exist_ok=True)
            self.run.clear()
            self.metrics = self.run.metrics(self.model.metric, about=self._header_entries)

    @property
    def _header_entries(self) -> dict[str, str]:
        """Further entries for the first line of the metrics."""
        return {"data": self.data.name} if isinstance(self.data, Data) else {}

    def save(self) -> None:
        """Save the model and all the state that is needed to resume as if the training had never stopped."""
        if self.run is None or self.metrics is None:
            return
        began = monotonic()
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
        tensors |= adapter_tensors(self.model)
        with merged(self.model):
            self.run.save(self.model, self.history.step, state, tensors)
        now = monotonic()
        self.next_save = now + max(EVERY, (now - began) / SHARE)

    def close(self) -> None:
        """Close `metrics.jsonl`."""
        if self.metrics is not None:
            self.metrics.close()

    def restore(self) -> None:
        """Resume from the last save; CheckpointError if a part of it is damaged."""
        run = cast(RunFolder, self.run)
        state, tensors = run.state(), run.tensors(self.model)
        try:
            history = History.read(run.folder, state["metrics"])
        except (ValueError, OSError) as error:
            raise CheckpointError(str(error)) from error
        if history.step != state["step"]:
            raise CheckpointError(
                f"{run.folder}/metrics.jsonl does not belong to the checkpoint: got step {history.step:,} at its end, "
                f"expected step {state['step']:,}. Restore the whole file"
            )
        if crc32(run.folder / METRICS, state["metrics"]) != state["metrics_crc32"]:
            raise CheckpointError(f"{run.folder / METRICS} is damaged: its checksum is wrong. Restore the whole file")
        restore_adapters(self.model, tensors)
        restore_optimiser(self.model, self.learner.optimiser, tensors)
        restore_random(self.device, tensors)
        self.history, self.smooth = history, state["smooth"]
        if isinstance(self.stream, Lanes) and state["state"] is not None:
            like = self.stream.state_before(self.model, history.step, None)
            self.learner.state = self.group.own_rows(restore_state(like, tensors, state["state"], self.device))
        if isinstance(self.stream, ResumableStream):
            self.stream.restore(tensors)
        run.tidy()  # the first change of the folder, so an error above leaves it as it was
        self.metrics = run.metrics(self.model.metric, state["metrics"], self._header_entries)


def open_training_stream(model: Model, data: Data | Batches, settings: Settings, decisions: Decisions) -> Stream:
    """Open the sequence of batches that a training with these settings learns from.

    model: the model to train.
    data: the training data.
    settings: settings with the batch, length and seed.
    decisions: tested facts about the model; they say whether several documents may share a row.

    Errors: ValueError if the model does not read data of this kind, or if the data does not fit the model.
    """
    if isinstance(data, TextData):
        data = replace(data, packed=decisions.packs_documents)
    return open_stream(model, data, settings.batch, settings.length, settings.seed, settings.sample_bytes)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's random numbers while the context is entered; then restore the generators.

    seed: the seed.
    device: device of the model.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
