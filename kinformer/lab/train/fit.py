"""fit: train a model, from Python."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from kinformer.checkpoint.checkpoint import CheckpointError, find_conflict
from kinformer.checkpoint.model_files import BEST
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.model import Model
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data
from kinformer.lab.data.spec import read_spec
from kinformer.lab.train.budget import Budget, MinuteBudget, StepBudget
from kinformer.lab.train.distributed import Form, processes
from kinformer.lab.train.folder_lock import lock_folder
from kinformer.lab.train.history import History
from kinformer.lab.train.loop import train
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings


def fit(
    model: Model,
    data: str | Data | Batches | Callable[[int], Any] | Iterable[Any],
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
    valid: str | None = None,
    parallel: Form = "ddp",
    **further: Any,
) -> History:
    """Train a model where it is, and say what happened.

        import kinformer as kf
        model = kf.gpt(d=128, depth=4)
        history = kf.fit(model, "text=book.txt", minutes=3, out="runs/book")
        print(history.best)

    Nothing is printed while it runs. With `out` each step is a line of metrics.jsonl there as it is made, which
    `tail -f runs/book/metrics.jsonl` shows; `kinformer train` tells its progress.

    A loop of one's own needs nothing of it: a model gives its loss, with a mean over the targets as `total`. Parts that
    change once a step (`core/after_step.py`), clipping, schedules and runs are what fit adds.

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

    model: anything that a member function makes, or a Model of your own.
    data: "text=PATH" or "text=stdlib", for what reads pairs "pairs=FILE.tsv", for any of these a task such as
        "task=recall,pairs=16"; a Text, Pairs, Tasks, or, for what reads none, Batches(train, valid); batches that are
        taken in turn may be given as they are. Of a text a token may be more than a byte:
        "text=notes.jsonl,field=body,tokenizer=bpe:4096" (`show text`).
    minutes, steps: how long: minutes of training, measuring not counted, or optimiser steps. One of the two.
    out: a folder for the run: the last model, the best one by its metric on valid in `best`, metrics.jsonl, and what it
        takes to go on; nothing is kept without one.
    batch, length: windows or lanes in a batch of text, 16, and tokens in each, 256 (the command line takes 4 and 128
        unless told); pairs in a batch, and the longest side of one. Other data brings its own.
    lr: the highest learning rate; that of the member's recipe unless given.
    seed: of the windows, and of what chance there is in training.
    resume: go on with the run in `out`, with the same arguments but for its length, to the same weights as if it had
        never stopped; begin anew where nothing was saved. More minutes or steps go on with what has ended.
    overwrite: a model that is in `out` may be replaced; else it is refused before the first step.
    valid: a file or folder to watch in place of a split of `data`, which is then learned from whole.
    parallel: in a script that torchrun starts, "ddp" gives each process all weights, "shard" a share of them.
    others: any other field of `Settings`: accumulate=4, precision="bf16", checkpointing=True, clip=0.5, or of the
        `Recipe`: schedule="linear", warmup=100, betas=(0.9, 0.98), eps=1e-9.

    Errors: ValueError, in one line, for data that the model does not read, for a model that learns what comes next and
    reads ahead or cannot go on, for a model in `out`, for an `out` that another process trains into (FolderInUse), and
    for arguments without a meaning;
    TrainingStopped where a loss is not finite.
    """
    if not isinstance(model, Model):
        raise ValueError(f"fit trains a Model, such as gpt() makes: got {type(model).__name__}")
    if resume and out is None:
        raise ValueError("resume=True goes on with a run in a folder; give out=")
    if resume and overwrite:
        raise ValueError(
            "resume=True continues the run in out, but overwrite=True starts it again; give one of the two"
        )
    budget = _budget(minutes, steps)
    settings = _settings({"batch": batch, "length": length}, lr=lr, seed=seed, **further)
    folder = None if out is None else Path(out)
    with (
        processes(parallel) as group,
        group.detect_lost_process(),
        nullcontext() if folder is None else lock_folder(folder, group),
    ):
        if folder is not None and not overwrite:
            _check_folder(folder, model, resume)
        read = _data(data, valid)
        try:
            return train(model, read, budget, settings, folder=folder, resume=resume, group=group, claimed=True)
        except CheckpointError as error:
            if folder is None:
                raise
            raise CheckpointError(f"{error}; {_advice_for(folder)}") from error


def _budget(minutes: float | None, steps: int | None) -> Budget:
    if (minutes is None) == (steps is None):
        raise ValueError("give one of minutes= and steps=: how long to train")
    return StepBudget(steps) if steps is not None else MinuteBudget(minutes or 0.0)


def _settings(usual: Mapping[str, Any], **keywords: Any) -> Settings:
    """Settings of keywords, and of those that are not None; ValueError for a name that is none."""
    names = [field.name for field in fields(Settings)]
    if unknown := [name for name in keywords if name not in names]:
        raise ValueError(f"fit has no keyword {unknown[0]!r}{suggest_names(unknown[0], names)}")
    return Settings(**{name: value for name, value in usual.items() if value is not None}, **keywords)


def _check_folder(folder: Path, model: Model, resume: bool) -> None:
    """ValueError where a training would overwrite what the folder holds, or could not go on with it."""
    run = RunFolder(folder)
    if resume and (reason := run.find_damage() or run.missing_trainer()) is not None:
        raise ValueError(f"{reason}; {_advice_for(folder)}")
    if (run.step is None or not resume) and (other := find_conflict(folder, model)) is not None:
        advice = "give another out=, or overwrite=True" + ("" if resume else ", or resume=True to go on with it")
        raise ValueError(f"{folder} holds {other}, which would be overwritten; {advice}")


def _advice_for(folder: Path) -> str:
    """What to do instead of resuming a run with a damaged or missing file."""
    weights = folder / BEST if (folder / BEST).is_dir() else folder
    return f"{weights} may have weights to load and start from, overwrite=True begins anew"


def _data(data: Any, valid: str | None) -> Data | Batches:
    if isinstance(data, str):
        return read_spec(data, **({} if valid is None else {"valid": valid}))
    if valid is not None:
        raise ValueError("valid= goes with data that is named, such as data='text=PATH'; else the data brings its own")
    return data if isinstance(data, Data | Batches) else Batches(data)
