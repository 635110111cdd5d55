"""The function `train`: train a model on data, from the beginning or from the last save of a run."""

from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinformer.checkpoint.checkpoint import columns_of, member_record
from kinformer.core.model import Model
from kinformer.core.warn import warn
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data
from kinformer.lab.data.support.data_tokenizer import ids_tokenizer
from kinformer.lab.data.support.model_batch import TOKEN_KINDS
from kinformer.lab.train.activation_checkpointing import checkpointed
from kinformer.lab.train.budget import Budget
from kinformer.lab.train.distributed import SINGLE_PROCESS, ShardedGroup, SingleProcess
from kinformer.lab.train.folder_lock import LOCKS, lock_folder
from kinformer.lab.train.history import History
from kinformer.lab.train.loop import MetricsCallback, Training, seeded
from kinformer.lab.train.lora import LoRAPlan
from kinformer.lab.train.lora_adapters import adapted
from kinformer.lab.train.micro_batches import warn_across_rows
from kinformer.lab.train.progress import ProgressDisplay
from kinformer.lab.train.reads_ahead import warn_ahead
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.start_record import refuse_others
from kinformer.lab.train.startup_decisions import Decisions, saved_decisions
from kinformer.lab.train.training_interrupt import catch_signals
from kinformer.lab.train.with_teacher import TaughtModel


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
    """Train a model on data, and save the run in a folder if one is given (`lab/train/run_folder.py`).

    The last weights are saved every ten seconds and at the end. The weights with the best metric on validation data are
    saved in `best`. A model with `lanes` is trained on lanes (parallel pieces of the text); its state is carried from
    batch to batch, without gradients. Another model is trained on random windows. Pairs (source and target) with a side
    longer than a window are left out, and a warning says how many. After every optimiser step, the method
    `after_step(progress, stats)` of each module that has it is called. Its stats are what that module counted in the
    step.

    Ctrl-C and SIGTERM save the training and raise TrainingInterrupt, a KeyboardInterrupt.

    model: the model to train.
    data: the training and validation data.
    budget: length of the training, in steps or minutes.
    settings: settings of the training; the defaults of `Settings` unless given.
    folder: the run folder; by default nothing is saved.
    show: display of the progress.
    on_metrics: called with each line of metrics.jsonl.
    resume: continue from the last save in the folder. On a CPU the weights are the same as after a training without a
        break. A warning says if there is no save, and the training begins anew. A larger budget continues a finished
        training, with the schedule of the new length.
    until: pause and save when this fraction of the budget is spent.
    group: the processes that share the training.
    claimed: True if the caller has locked the folder.
    decisions: results of the tests of the model before a new training (`Decisions`); unless given, the tests are run.

    Errors: ValueError if a text is too short, or if a model that learns the next token cannot decode. ValueError if its
    outputs depend on later tokens although no part declares it. TrainingStopped if a loss or gradient is not finite,
    before it changes a weight. OSError if the disk is full. The earlier save is kept in both cases. ResumeError, which
    names the difference, if the run started with other settings or data. FolderInUse if another process trains into the
    folder.
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
        raise ValueError("resume=True continues the run in a folder: got folder=None. Give folder=FOLDER")
    if settings.lora is not None and isinstance(group, ShardedGroup):
        raise ValueError("LoRA keeps all weights in each process: got parallel='shard', expected parallel='ddp'")
    going_on = not group.reduce_max(not (resume and run is not None and run.step is not None))
    if run is not None and going_on:
        settings, decisions = _restore_run(run, model, data, settings)  # before the model is distributed over processes
    with adapted(model, settings.adapters, settings.seed) as plan:
        if show is not None and not group.rank:
            _note_trained(model, plan, show)
        training = Training(
            model,
            data,
            budget,
            settings,
            run,
            show or ProgressDisplay(),
            on_metrics or _ignore_metrics,
            group,
            decisions,
        )
        warn_ahead(model, training.decisions.reads_ahead)
        warn_across_rows(model, settings.accumulate, group.size)
        if isinstance(data, Data):
            group.refuse_few(settings.batch, settings.accumulate)
            _note_data(model, data, settings.length)
        elif model.reads in TOKEN_KINDS:
            model.tokenizer = ids_tokenizer(model, data.tokenizer)
        if run is not None:
            member_record(model)
        if resume and not going_on:
            has_files = folder is not None and any(path.name not in LOCKS for path in Path(folder).glob("*"))
            content = "has no complete checkpoint to resume from" if has_files else "has no checkpoint yet"
            warn(f"{folder} {content}: the training starts from the beginning")
        recomputation = checkpointed(model) if settings.checkpointing else nullcontext()
        with (
            catch_signals(group.size > 1) as stopped,
            seeded(settings.seed, training.device),
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
    model.columns = columns_of(run.folder)  # the weights were trained with these scales; they replace the model's
    return replace(settings, **state["measuring"]), saved_decisions(state)


def _note_trained(model: Model, plan: LoRAPlan | None, show: ProgressDisplay) -> None:
    """Show what the training trains, if that is not simply all weights by the loss of the model."""
    losses = model.describe_losses() if isinstance(model, TaughtModel) else []
    for text in losses if plan is None else [str(plan), *losses]:
        show.note(text)


def _note_data(model: Model, data: Data, length: int) -> None:
    """Record in the model the data that it learns from, and warn of data that is left out."""
    longest = data.longest_length(length)
    model.trained_length = longest if longest is None else max(longest, model.trained_length or 0)
    model.trained_on = data.name
    model.tokenizer, model.labels, model.headless = data.tokenizer, data.labels, False
    data.store_scales(model)
    if left_out := data.left_out(length):
        warn(left_out)


def _ignore_metrics(line: dict[str, Any]) -> None:
    """Do nothing with a line of metrics."""
