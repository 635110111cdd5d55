"""Weights & Biases: a run there with the same numbers as in metrics.jsonl."""

import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import contents, write
from kinformer.core.from_json import from_json
from kinformer.lab.train.metrics_logger import LoggedRun, check_installed

RECORD = "wandb.json"  # file of the run folder with the id of the run, which a resumed training continues
PROJECT = "kinformer"
LOCAL = ("offline", "dryrun", "disabled")  # modes of wandb that need no account
ADVICE = "Set WANDB_MODE=offline to record the run on this machine; `wandb sync` uploads it later"


class WandbRun:
    """Logger of the numbers in metrics.jsonl to a run of Weights & Biases.

    A training that resumes continues the same run. Each number is drawn against the training step.

    The run begins with the first numbers, so a refused training leaves none.

    logged: facts about the training.
    project: name of the project; by default the value of WANDB_PROJECT, or else "kinformer".
    on_begin: called with the address of the run, or with its folder if the mode of wandb is offline.

    Errors: ImportError, in one line, without the package wandb. ValueError, in one line, if wandb cannot begin a run.
    """

    def __init__(
        self, logged: LoggedRun, project: str | None = None, on_begin: Callable[[str], None] = lambda place: None
    ) -> None:
        check_installed("wandb", "wandb")
        self.logged, self.project, self.on_begin = logged, project, on_begin
        self.run: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record the numbers of a step or of a measurement."""
        if self.run is None:
            self.run = self._begin()
            place = Path(self.run.dir).parent if self.run.offline else self.run.url
            if place is not None:  # with WANDB_MODE=disabled there is no run
                self.on_begin(str(place))
        self.run.log({"step": step, **numbers})

    def _begin(self) -> Any:
        check_account()
        # imported here, because wandb is an optional package
        import wandb

        logged = self.logged
        stored = _stored(logged.folder) if logged.resumed else {}
        try:
            run = wandb.init(
                id=stored.get("id") or secrets.token_hex(4),
                project=self.project or stored.get("project") or wandb.setup().settings.project or PROJECT,
                name=logged.name,
                group=logged.group or None,
                config=dict(logged.config),
                dir=str(logged.folder),
                resume="allow",
                reinit="create_new",  # a comparison has several runs at a time
                settings=wandb.Settings(console="off", silent=True),
            )
        except (wandb.Error, ValueError) as error:  # pydantic's errors of settings are ValueErrors
            raise ValueError(f"wandb cannot begin a run: {_reason(error)}. {ADVICE}") from error
        run.define_metric("step")
        run.define_metric("*", step_metric="step")  # a resumed run may log a step again, which its own counter refuses
        record = {"id": run.id, "project": run.project}
        write(logged.folder / RECORD, (json.dumps(record, indent=2) + "\n").encode())
        return run

    def close(self) -> None:
        """Upload or write the remaining numbers, and end the run."""
        if self.run is not None:
            self.run.finish()


def check_account() -> None:
    """Check that wandb can begin a run without asking the user anything.

    Errors: ImportError, in one line, without the package wandb. ValueError, in one line, without an account, unless
    WANDB_MODE names a mode that needs none.
    """
    check_installed("wandb", "wandb")
    # imported here, because wandb is an optional package
    import wandb

    try:
        settings = wandb.setup(wandb.Settings(silent=True)).settings
        knows_account = settings.mode in LOCAL or wandb.login(prompt=False, verify=False)
    except (wandb.Error, ValueError) as error:
        raise ValueError(f"wandb refuses its settings: {_reason(error)}") from error
    if not knows_account:
        raise ValueError(f"wandb knows no account on this machine. {ADVICE}, or log in with `wandb login`")


def _reason(error: Exception) -> str:
    """Return the message of an error of wandb, or of pydantic's first error of its settings, in one line."""
    errors = getattr(error, "errors", None)
    message = "{loc[0]}: {msg}, got {input!r}".format(**errors()[0]) if callable(errors) else str(error)
    return " ".join(message.split()).rstrip(".")


def _stored(folder: Path) -> dict[str, Any]:
    """Return the id and the project of the run that a training continues; empty if they are unknown."""
    try:
        record = from_json(contents(folder / RECORD))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
