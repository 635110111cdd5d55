"""Files of a saved model: their names, and what is said where one is missing.

Nothing heavy is imported, so that a command can look before it begins.
Choose `contents` to read one of them; `checkpoint/checkpoint.py` says what is in it.
"""

from pathlib import Path

from kinformer.checkpoint.atomic_files import contents as read_file
from kinformer.core.missing_path import missing_path

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
BEST = "best"  # the folder of the best model, within that of its run


def contents(path: Path) -> bytes:
    """The bytes of a file of a model; OSError, in one line, if it or its folder is missing or cannot be read."""
    if path.parent.is_file():
        raise NotADirectoryError(f"{path.parent} is a file, and a checkpoint is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(missing_path(path.parent))
    if not path.is_file():
        inside = ", ".join(str(folder.parent) for folder in sorted(path.parent.glob(f"*/{path.name}")))
        advice = f"; give one of the folders in it: {inside:.200}" if inside else ""
        raise FileNotFoundError(f"{path.parent} is no checkpoint: it has no {path.name}{advice}")
    return read_file(path)
