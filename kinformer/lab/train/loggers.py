"""Loggers of a training: the facts that they record, and the ones that `fit` opens."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kinformer import __version__
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data
from kinformer.lab.train.budget import Budget
from kinformer.lab.train.metrics_logger import LoggedRun, MetricsLogger, check_installed, step_and_numbers
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.tensorboard_events import TensorBoardEvents
from kinformer.lab.train.wandb_run import WandbRun, check_account

LogLine = Callable[[Mapping[str, Any]], None]


@contextmanager
def logging_to(loggers: Iterable[MetricsLogger]) -> Iterator[LogLine]:
    """Enter a context with a function that records a line of metrics.jsonl with each logger.

    loggers: the loggers; they are closed at the end of the context.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(logger)) for logger in loggers]

        def log_line(line: Mapping[str, Any]) -> None:
            step, numbers = step_and_numbers(line)
            for logger in opened:
                logger.log(step, numbers)

        yield log_line


def check_loggers(folder: Path | None, tensorboard: bool, wandb: bool) -> None:
    """Check, before a training, that the loggers of `fit` can be opened.

    folder: the folder of the run.
    tensorboard, wandb: the chosen loggers.

    Errors: ValueError without a folder, and if wandb knows no account. ImportError, in one line, for a missing package.
    """
    for name, is_chosen in {"tensorboard": tensorboard, "wandb": wandb}.items():
        if is_chosen and folder is None:
            raise ValueError(f"{name}=True records into the folder of the run, but there is none. Give out=FOLDER")
    if tensorboard:
        check_installed("tensorboardX", "tensorboard")
    if wandb:
        check_account()


def fit_loggers(run: LoggedRun, tensorboard: bool, wandb: bool) -> list[MetricsLogger]:
    """Return the loggers of `fit`, which are opened at the first numbers.

    run: facts about the training.
    tensorboard, wandb: the chosen loggers.
    """
    events: list[MetricsLogger] = [TensorBoardEvents(run.folder / "tensorboard")] if tensorboard else []
    return [*events, WandbRun(run)] if wandb else events


def run_config(
    model: Any, data: Data | Batches, budget: Budget, settings: Settings, device: torch.device
) -> dict[str, Any]:
    """Return the member, its keywords, the data and the settings of a training, as loggers record them.

    model: the model.
    data: the training data.
    budget: length of the training.
    settings: settings of the training.
    device: device of the model.
    """
    record = getattr(model, "member", None)
    return {
        "member": getattr(record, "name", type(model).__name__),
        "keywords": dict(getattr(record, "keywords", {})),
        **(
            {"changes": changes} if (changes := [change._asdict() for change in getattr(record, "changes", ())]) else {}
        ),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": getattr(data, "name", "batches"),
        "budget": budget.record,
        "device": str(device),
        "settings": {**asdict(settings), **asdict(settings.recipe(model))},
        "kinformer": __version__,
    }
