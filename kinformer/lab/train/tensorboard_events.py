"""TensorBoard events of a run: the same metrics as in metrics.jsonl."""

from pathlib import Path
from typing import Any

EXTRA = "tensorboardX is not installed; pip install 'kinformer[tensorboard]', or leave out --tensorboard"


class TensorBoardEvents:
    """Writer of the numbers in metrics.jsonl for TensorBoard (`tensorboard --logdir FOLDER`).

    A run that resumes removes the events after its last save.

    folder: the folder of the events.

    Errors: ImportError, in one line, without the package tensorboardX.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(EXTRA) from error
        self.open, self.folder = SummaryWriter, folder
        self.writer: Any = None

    def __call__(self, line: dict[str, Any]) -> None:
        """Write the numbers of a step or of a measurement."""
        at = line.get("step", line.get("after"))
        if self.writer is None:
            self.writer = self.open(str(self.folder), purge_step=at)
        names = ("loss", "lr", "norm") if "step" in line else ("valid", "train")
        for name in names:
            self.writer.add_scalar(name, line[name], at)
        for kind in ("parts", "others"):
            for name, value in line.get(kind, {}).items():
                self.writer.add_scalar(f"{kind}/{name}", value, at)

    def close(self) -> None:
        """Write the remaining events and close the file."""
        if self.writer is not None:
            self.writer.close()
