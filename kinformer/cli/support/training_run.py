"""Trainings by the commands, with their progress on stderr and their loggers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kinformer.cli.errors import ended_by, print_warnings
from kinformer.cli.support.console import plain_console
from kinformer.cli.support.guess_warning import GuessWarning
from kinformer.cli.support.run_folder import (
    advice_instead_of_resuming,
    make_folder,
    warn_of_outdated_files,
    with_advice,
)
from kinformer.cli.support.training import Job
from kinformer.lab.errors import FAILED, UserError, from_user
from kinformer.lab.train.budget import Budget, MinuteBudget, StepBudget
from kinformer.lab.train.guess_level import guess_level
from kinformer.lab.train.history import History
from kinformer.lab.train.loggers import LogLine, logging_to, run_config
from kinformer.lab.train.loop import TrainingStopped
from kinformer.lab.train.metrics_logger import LoggedRun
from kinformer.lab.train.out_of_memory import is_out_of_memory
from kinformer.lab.train.progress import show
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.startup_decisions import Decisions
from kinformer.lab.train.train import train


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
    if resumed := resume and RunFolder(folder).step is not None:
        try:
            done = History.read(folder, RunFolder(folder).state()["metrics"])
        except (ValueError, LookupError, OSError) as error:
            raise UserError(f"{error}; {advice_instead_of_resuming(folder)}") from error
        print(f"{name}: {_resume_text(done, job.budget)}", file=sys.stderr)
    with print_warnings(), warn_of_outdated_files(folder), with_advice(advice_instead_of_resuming(folder)):
        with run_loggers(name, model, job, folder, resumed) as log_line:
            return train_until(name, model, job, folder, resume=resume, decisions=decisions, log_line=log_line)


@contextmanager
def run_loggers(name: str, model: Any, job: Job, folder: Path, resumed: bool, group: str = "") -> Iterator[LogLine]:
    """Enter a context with a function that records a line of metrics.jsonl with the loggers of the job.

    name: name of the training.
    model: the model.
    job: the data and settings.
    folder: the folder of the run.
    resumed: True if the training continues a run that was stopped.
    group: name of the comparison that the training belongs to. Without one, a result that is no better than a guess is
        reported at once.
    """
    run = LoggedRun(name, folder, run_config(model, job.data, job.budget, job.settings, job.device), resumed, group)
    warning = GuessWarning(name, lambda: guess_level(model, job.data, job.settings), job.budget)
    with logging_to([*(open_logger(run) for open_logger in job.loggers), *([] if group else [warning])]) as log_line:
        yield log_line


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
    log_line: LogLine | None = None,
) -> History:
    """Train a model up to a fraction of its budget, and save the run in a folder.

    name: name of the training, for progress and messages.
    model: the model.
    job: the data and settings.
    folder: the folder of the run.
    resume: continue the run in the folder.
    until: fraction of the budget at which to stop, from the start of the run.
    decisions: the tested facts that `check_trainable` returned for the model; if None, the training tests them.
    log_line: called with each line of metrics.jsonl.

    The caller has locked the folder, and prints warnings. Returns the history of the whole run. Errors: UserError if a
    signal stops the training, a file is unreadable, the loss is not finite or the memory is too small.
    """
    first, new = not job.group.rank, not folder.exists()
    if first:
        make_folder(folder)
    try:
        model.to(job.device)
        with show(plain_console(stderr=True), name) as display, from_user(ValueError, LookupError):
            return train(
                model,
                job.data,
                job.budget,
                job.settings,
                folder=folder,
                show=display,
                on_metrics=log_line,
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
