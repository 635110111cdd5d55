"""Loggers that the options --tensorboard and --wandb of a command choose."""

import sys
from collections.abc import Callable
from functools import partial

from kinformer.lab.errors import from_user
from kinformer.lab.train.metrics_logger import LoggedRun, MetricsLogger, check_installed
from kinformer.lab.train.tensorboard_events import TensorBoardEvents
from kinformer.lab.train.wandb_run import WandbRun, check_account

OpenLogger = Callable[[LoggedRun], MetricsLogger]


def chosen_loggers(tensorboard: bool, wandb: bool, project: str | None) -> tuple[OpenLogger, ...]:
    """Return a function for each chosen logger that opens it for a training.

    tensorboard: write events for TensorBoard.
    wandb: record the training with Weights & Biases.
    project: name of the project there; None for the value of WANDB_PROJECT, or else "kinformer".

    Errors: UserError if a package is missing, or if wandb knows no account and is not in offline mode.
    """
    chosen: list[OpenLogger] = []
    with from_user(ImportError, ValueError):
        if tensorboard:
            check_installed("tensorboardX", "tensorboard")
            chosen.append(lambda run: TensorBoardEvents(run.folder / "tensorboard"))
        if wandb:
            check_account()
            chosen.append(lambda run: WandbRun(run, project, partial(_print_place, run.name)))
    return tuple(chosen)


def _print_place(name: str, place: str) -> None:
    print(f"{name}: wandb records the run at {place}", file=sys.stderr)
