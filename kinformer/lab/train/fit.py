"""fit: train a model from Python."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from kinformer.checkpoint.checkpoint import find_conflict
from kinformer.checkpoint.model_files import BEST, METRICS, CheckpointError
from kinformer.core.checks import check_option
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.missing_path import refuse_long_paths
from kinformer.core.model import Model, display_name
from kinformer.core.quote import quote
from kinformer.lab.data.as_data import as_data
from kinformer.lab.data.batches import Batches, device_of
from kinformer.lab.data.data import Data
from kinformer.lab.train.budget import make_budget
from kinformer.lab.train.distributed import Form, processes
from kinformer.lab.train.fit_progress import show_fit
from kinformer.lab.train.folder_lock import lock_folder
from kinformer.lab.train.history import History
from kinformer.lab.train.loggers import check_loggers, fit_loggers, logging_to, run_config
from kinformer.lab.train.metrics_logger import LoggedRun
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train


@partial(hint_keywords, further=[field.name for field in fields(Settings)])
@refuse_long_paths()
def fit(
    model: Model,
    data: str | Path | Data | Batches | Callable[[int], Any] | Iterable[Any],
    *,
    minutes: float | None = None,
    steps: int | None = None,
    out: str | Path | None = None,
    batch: int | None = None,
    length: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    valid: Any = None,
    tokenizer: Any = None,
    parallel: Form = "ddp",
    progress: bool | None = None,
    tensorboard: bool = False,
    wandb: bool = False,
    on_metrics: Callable[[dict[str, Any]], None] | None = None,
    **further: Any,
) -> History:
    """Train a model in place and return the history of the training.

        import kinformer as kf
        model = kf.gpt(d=128, depth=4)
        history = kf.fit(model, "text=book.txt", minutes=3, out="runs/book")
        print(history.best)

    A terminal and a notebook show a bar with the step, the loss, the metric on validation data, the speed and the time
    left. If `out` is given, each step adds a line to metrics.jsonl in that folder.

    A training loop of your own does not need `fit`: a model returns its loss, with a mean over the targets as `total`.
    `fit` adds gradient clipping, learning rate schedules, run folders, and updates that some parts make once after each
    step (`core/after_step.py`).

        import torch
        import kinformer as kf
        from kinformer.lab.data.text import read
        from kinformer.lab.data.random_windows import RandomWindows
        model, windows = kf.gpt(d=128, depth=4), RandomWindows(read("book.txt").train, batch=16, length=256)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(1000):
            model(windows.at(step)).total.backward()
            optimiser.step()
            optimiser.zero_grad()

    model: a model from a member function, or a Model of your own.
    data: the training data in one of these forms.
        1. A path of a file or folder in the form that the model reads: a text, or lines of pairs or of labelled texts.
        2. KIND=PLACE with options: "text=notes.jsonl,field=body,tokenizer=bpe:4096" or "task=recall,pairs=16".
        3. A data set of the package `datasets`, or a list of dicts or of texts. Its columns are `text`; `input_ids`,
        with `attention_mask` and `labels` if there are any; `source` and `target`; or `text` and `label`.
        4. A DataLoader, an iterable of batches, or a function from the step to a batch. A batch is a dict with
        `input_ids` and perhaps `attention_mask` and `labels`, as the collators of transformers make it, or a batch of
        the model. Tokens without attention are not read and have no loss, and a label of -100 has no loss.
        5. Token ids [N] or [rows, N], or a list of rows.
        6. A `Data` or `Batches` object.
    minutes, steps: length of the training, in minutes without evaluation or in optimiser steps. Give one of the two.
    out: folder of the run. It holds the last model, the model with the best metric on validation data in `best`,
        metrics.jsonl, and the training state to resume from. Nothing is saved by default.
    batch, length: for text, windows or lanes (parallel pieces of the text) per batch (16 by default) and tokens in each
        (256 by default; the command line uses 4 and 128). For pairs, pairs per batch and the longest side of a pair.
        Other data has its own batches, as a DataLoader has, and neither is allowed.
    lr: the highest learning rate; by default the rate of the member's recipe, or 5e-5 for weights that another library
        trained.
    seed: seed of the windows and of all random numbers in training.
    resume: continue the run in `out` with the same arguments, except for its length. On a CPU the weights are the same
        as after a training without a break. The training starts anew if nothing was saved. More minutes or steps
        continue a finished run.
    overwrite: True allows replacing a model in `out`; by default such a folder is refused before the first step.
    valid: validation data in the form of `data`; all of `data` is then training data. By default, validation data is
        the validation split of a data set, or a part of `data`. If `data` is batches, the training batches are
        measured, with a warning for a DataLoader.
    tokenizer: the tokenizer of texts, or the one that made the token ids: a tokenizers.Tokenizer, a fast tokenizer of
        transformers, the path of a tokenizer.json, or "bytes". It is saved with the model. Without one, texts are read
        as bytes. A model that is trained on token ids without one refuses texts later.
    parallel: in a script that torchrun starts, "ddp" keeps all weights in each process, and "shard" a part of them.
    progress: True shows the progress, as lines if stderr is neither a terminal nor a notebook. False shows nothing, and
        None shows it only in a terminal or a notebook.
    tensorboard: True writes the numbers of each step to the folder `tensorboard` in `out`, for TensorBoard.
    wandb: True records them with Weights & Biases, in the project WANDB_PROJECT; WANDB_MODE=offline needs no account.
    on_metrics: a function that is called with each line of metrics.jsonl, a dict such as {"step": 3, "loss": 2.1}, for
        loggers of your own. Each measurement on validation data is a line with `after` and `valid`.
    further: other fields of `kf.Settings`, such as lora=8 (low-rank adaptation of trained weights), accumulate=4,
        precision="bf16", checkpointing=True, decay=0.1 or clip=0.5, or of `Recipe`, such as schedule="linear",
        warmup=100, betas=(0.9, 0.98) or eps=1e-9.

    The model stays in train mode, as after a loop of PyTorch: call model.eval() before you use its scores. `generate`,
    `look` and `kf.load` do so themselves.

    Errors: ValueError, in one line, if the model does not read the data or an argument has no meaning. TypeError for an
    unknown keyword, with the keyword to use instead. FileNotFoundError for a missing path. ValueError if a model that
    learns the next token cannot decode, or if its outputs depend on later tokens although no part declares it.
    ValueError if `out` holds a model, or if another process trains into `out` (FolderInUse). TrainingStopped if a loss
    is not finite.
    """
    if not isinstance(model, Model):
        got = type(model).__name__
        if isinstance(data, Model):
            raise ValueError(f"fit takes the model first: got {got} and then a model. Call fit(model, data)")
        foreign = ", which is a model of transformers" if type(model).__module__.startswith("transformers.") else ""
        raise ValueError(f"wrong model for fit: got {got}{foreign}, expected a model of kinformer, such as kf.gpt()")
    if not isinstance(resume, bool):
        raise ValueError(f"resume={quote(resume)}: expected True or False. resume=True continues the run in out")
    if resume and out is None:
        raise ValueError("resume=True continues the run in a folder: got out=None. Give out=FOLDER")
    if resume and overwrite:
        raise ValueError(
            "resume=True continues the run in out, but overwrite=True starts it again; give one of the two"
        )
    check_loggers(None if out is None else Path(out), tensorboard, wandb)
    settings = _settings({"batch": batch, "length": length}, lr=lr, seed=seed, **further)
    settings = settings.fine_tuning() if model.is_pretrained else settings
    budget = make_budget(minutes, steps)
    folder = None if out is None else Path(out)
    if folder is not None and folder.is_file():
        raise ValueError(f"wrong out: got the file {folder}, expected a folder. Give another out=")
    check_option("parallel", parallel, Form)
    with (
        processes(parallel) as group,
        group.detect_lost_process(),
        nullcontext() if folder is None else lock_folder(folder, group),
    ):
        if folder is not None and not overwrite:
            _check_folder(folder, model, resume)
        read = as_data(model, data, valid, tokenizer=tokenizer, batch=batch, length=length, seed=seed)
        shown = progress if group.rank == 0 else False
        loggers = []
        if folder is not None and group.rank == 0:
            config, resumed = run_config(model, read, budget, settings, device_of(model)), resume and _has_run(folder)
            run = LoggedRun(folder.name, folder, config, resumed)
            loggers = fit_loggers(run, tensorboard, wandb)
        try:
            with show_fit(shown, display_name(model)) as show, logging_to(loggers) as log_line:

                def record(line: dict[str, Any]) -> None:
                    log_line(line)
                    if on_metrics is not None:
                        on_metrics(line)

                return train(
                    model,
                    read,
                    budget,
                    settings,
                    folder=folder,
                    show=show,
                    on_metrics=record,
                    resume=resume,
                    group=group,
                    claimed=True,
                )
        except CheckpointError as error:
            if folder is None:
                raise
            raise CheckpointError(f"{error}; {_advice_for(folder)}") from error


def _has_run(folder: Path) -> bool:
    return RunFolder(folder).step is not None


def _settings(usual: Mapping[str, Any], **keywords: Any) -> Settings:
    """Return the settings of keywords, and of the `usual` ones that are not None."""
    return Settings(**{name: value for name, value in usual.items() if value is not None}, **keywords)


def _check_folder(folder: Path, model: Model, resume: bool) -> None:
    """Raise ValueError if the training would overwrite files in the folder, or cannot continue its run."""
    run = RunFolder(folder)
    if resume and (reason := run.find_damage() or run.missing_trainer()) is not None:
        raise ValueError(f"{reason}; {_advice_for(folder)}")
    if (run.step is None or not resume) and (other := find_conflict(folder, model)) is not None:
        advice = "give another out=, or overwrite=True" + ("" if resume else ", or resume=True to continue it")
        raise ValueError(f"{folder} holds {other}, which would be overwritten; {advice}")
    metrics = folder / METRICS
    if run.step is None and metrics.is_file() and metrics.stat().st_size:
        try:
            History.read(folder)
        except ValueError as error:
            raise ValueError(f"{error}, and would be overwritten; give another out=, or overwrite=True") from error


def _advice_for(folder: Path) -> str:
    """Return advice for a run that cannot resume, because a file is damaged or missing."""
    weights = folder / BEST if (folder / BEST).is_dir() else folder
    return f"load weights from {weights} if they are intact, or start again with overwrite=True"
