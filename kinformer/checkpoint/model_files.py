"""Names of the files of a saved model, and the errors for missing or damaged files.

The module imports nothing heavy, so that a command can check its files before it starts. Use `contents` to read one of
them; `checkpoint/checkpoint.py` describes their content.
"""

from pathlib import Path

from kinformer.checkpoint.atomic_files import contents as read_file
from kinformer.core.missing_path import missing_path

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
BEST = "best"  # subfolder of a run with the best model


class CheckpointError(ValueError):
    """Error for a folder that holds no loadable model; the message names the file and its fault."""


def contents(path: Path) -> bytes:
    """Return the bytes of a file of a saved model.

    path: file in the model's folder.

    Errors: OSError, in one line, if the file or its folder is missing or cannot be read.
    """
    if path.parent.is_file():
        raise NotADirectoryError(f"{path.parent} is a file, but a checkpoint is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(missing_path(path.parent))
    if not path.is_file():
        inside = ", ".join(str(folder.parent) for folder in sorted(path.parent.glob(f"*/{path.name}")))
        advice = f"; give one of the folders in it: {inside:.200}" if inside else ""
        raise FileNotFoundError(f"{path.parent} is not a checkpoint: it has no {path.name}{advice}")
    return read_file(path)
