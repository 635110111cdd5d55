"""TensorBoard events of a run: the same numbers as in metrics.jsonl."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinformer.lab.train.metrics_logger import check_installed


class TensorBoardEvents:
    """Logger of the numbers in metrics.jsonl for TensorBoard (`tensorboard --logdir FOLDER`).

    A run that resumes removes the events after its last save.

    folder: the folder of the events.

    Errors: ImportError, in one line, without the package tensorboardX.
    """

    def __init__(self, folder: Path) -> None:
        check_installed("tensorboardX", "tensorboard")
        self.folder = folder
        self.writer: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a step or of a measurement."""
        if self.writer is None:
            # imported here, because tensorboardX is an optional package
            from tensorboardX import SummaryWriter

            self.writer = SummaryWriter(str(self.folder), purge_step=step)
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write the remaining events and close the file."""
        if self.writer is not None:
            self.writer.close()
