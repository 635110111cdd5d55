"""Run folder: the files of a training; a kill at any moment leaves a complete checkpoint.

    config.json, model.safetensors   the model at its last save
    best/                            the same two files for the model with the best metric on validation data
    trainer/STEP/                    the training state to resume from: trainer.json, trainer.safetensors,
                                     and shards/ with the tensors that are sharded, written by each process
    metrics.jsonl                    a line for each step and each measurement

The weights record their step. The training state of a step is written before its weights are put in place, and it is
removed after newer weights are in place. One rename of model.safetensors therefore completes a save.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as format_tensors
from torch import Tensor, nn

from kinformer.checkpoint.atomic_files import contents as read_file
from kinformer.checkpoint.atomic_files import crc32, remove, write_folder
from kinformer.checkpoint.checkpoint import check_same_model, save
from kinformer.checkpoint.model_files import BEST, CONFIG, METRICS, TOKENIZER, WEIGHTS, CheckpointError
from kinformer.checkpoint.weights_file import is_sharded, load_tensors, read_tensors, tensors_of
from kinformer.core.from_json import from_json
from kinformer.core.model import Metric
from kinformer.lab.train.history import Metrics, SilentMetrics

TRAINER = "trainer"
STATE, TENSORS, SHARDS = "trainer.json", "trainer.safetensors", "shards"
EDITION = 2  # edition 1 had no checksums
STATE_FOLDER = re.compile(r"\d+|\.\d+\.partial")  # names within trainer/
MODEL_FILE = re.compile(  # names within best/: a model, and results for its weights
    "|".join(map(re.escape, (CONFIG, WEIGHTS, TOKENIZER))) + r"|(exits|knn-lm)\.(json|png)|\..*\.partial"
)


class RunFolder:
    """The folder of a training.

    `step` is the number of steps of its checkpoint, or None if there is no complete checkpoint.

    folder: path of the folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.weights_step = self._read_weights_step()
        self.step = self._read_step()

    def find_damage(self) -> str | None:
        """Return why the weights cannot be read, or None if they can be read or do not exist.

        A killed process never leaves unreadable weights; a damaged disk or copy may.
        """
        weights = self.folder / WEIGHTS
        if self.step is not None or not weights.is_file():
            return None
        try:
            read_tensors(weights)
        except (CheckpointError, OSError) as error:
            return str(error)
        return None

    def missing_trainer(self) -> str | None:
        """Return a message if weights exist without the training state to resume from, otherwise None."""
        trainer = self.folder / TRAINER
        if self.step is not None or not (self.folder / WEIGHTS).is_file() or trainer.is_dir():
            return None
        return f"cannot resume: {trainer}, the training state, is missing"

    def clear(self) -> None:
        """Remove the files of the previous training: its metrics, its training state and its best model.

        The previous weights stay until new weights replace them. Files that no training has written stay too.
        """
        remove(self.folder / METRICS)  # first: without it no run resumes, even after a partial removal
        _remove_within(self.folder / TRAINER, STATE_FOLDER)
        _remove_within(self.folder / BEST, MODEL_FILE)
        self.step = None

    def save(self, model: nn.Module, step: int, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Save the model and its training state; the previous save is kept until this save is complete.

        If this step is already saved, nothing is written.

        model: the model to save.
        step: number of steps taken.
        state: the training state as JSON values.
        tensors: the tensors of the training state.

        Errors: OSError, in one line, if the disk is full or the folder cannot be written.
        """
        if step == self.step:
            return
        # Weights of the previous training may record the same step; its state must not appear beside them.
        first = self.step is None and step == self.weights_step
        if first:
            self._put_weights(model, step)
        self._put_trainer(step, state, tensors)
        if not first:
            self._put_weights_or_free(model, step)
        self.step = step
        self.tidy()

    def _put_weights(self, model: nn.Module, step: int) -> None:
        save(model, self.folder, step=step)

    def _put_weights_or_free(self, model: nn.Module, step: int) -> None:
        """Write the weights. If the disk is full, remove the training state of this step again."""
        try:
            self._put_weights(model, step)
        except OSError:
            with suppress(OSError):
                remove(self.folder / TRAINER / str(step))
                (self.folder / TRAINER).rmdir()  # fails, as it should, if an earlier save is there
            raise

    def _put_trainer(self, step: int, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Write the training state of a step, with checksums."""
        folder = self.folder / TRAINER / str(step)
        numbers = format_tensors({name: tensor for name, tensor in tensors.items() if not is_sharded(tensor)})
        state = {"format": EDITION, **state, "tensors_crc32": zlib.crc32(numbers)}
        text = json.dumps({**state, "sum": _sum(state)}, indent=2) + "\n"
        write_folder(folder, {STATE: text.encode(), TENSORS: numbers})
        _write_shards(folder, tensors)

    def metrics(self, metric: Metric, size: int = 0, about: Mapping[str, Any] | None = None) -> Metrics:
        """Open `metrics.jsonl` and keep its first `size` bytes; a new file starts with the metric and `about`.

        about: further entries of its first line, such as the name of the data.
        """
        return Metrics(self.folder, metric, size, about)

    def best(self, model: nn.Module, step: int) -> None:
        """Save the model as the best model so far."""
        save(model, self.folder / BEST, step=step)

    def state(self) -> dict[str, Any]:
        """Return the training state of the last save; CheckpointError if its file is damaged."""
        path = self.folder / TRAINER / str(self.step) / STATE
        try:
            state = from_json(read_file(path))
        except OSError as error:
            raise CheckpointError(str(error)) from error
        except ValueError as error:
            raise CheckpointError(f"{path} is truncated or not JSON: {error}") from error
        if not isinstance(state, dict) or state.get("format") != EDITION:
            edition = state.get("format", 1) if isinstance(state, dict) else None
            raise CheckpointError(
                f"{path} is of another kinformer version: got edition {edition!r:.20}, expected edition {EDITION}"
            )
        if state.pop("sum", None) != _sum(state):
            raise CheckpointError(f"{path} is damaged: its hash is wrong. Restore the file")
        return state

    def restore(self, model: nn.Module) -> None:
        """Load the weights of the last save; CheckpointError if they, or the best model, are damaged."""
        for place in (self.folder, self.folder / BEST):
            if place.is_dir():
                check_same_model(place, model)
        weights, _ = read_tensors(self.folder / WEIGHTS)
        load_tensors(model, weights, self.folder / WEIGHTS)

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the training tensors of the last save; each process gets its shard of sharded tensors."""
        folder = self.folder / TRAINER / str(self.step)
        tensors, _ = read_tensors(folder / TENSORS)
        if crc32(folder / TENSORS) != self.state()["tensors_crc32"]:
            raise CheckpointError(f"{folder / TENSORS} is damaged: its checksum is wrong. Restore the file")
        if not (folder / SHARDS).is_dir():
            return tensors
        from kinformer.lab.train.fsdp import read_shards

        return tensors | read_shards(folder / SHARDS, dict(model.named_parameters()))

    def tidy(self) -> None:
        """Remove the training state of every step except the step of the current weights."""
        for other in (self.folder / TRAINER).iterdir():
            if other.name != str(self.step) and STATE_FOLDER.fullmatch(other.name):
                remove(other)

    def _read_weights_step(self) -> int | None:
        """Return the step that the weights record: -1 if there is none, None if they cannot be read."""
        try:
            with safe_open(self.folder / WEIGHTS, framework="pt") as file:
                return int((file.metadata() or {}).get("step", -1))
        except (OSError, SafetensorError, ValueError):
            return None

    def _read_step(self) -> int | None:
        trainer = self.folder / TRAINER / str(self.weights_step)
        files = (self.folder / CONFIG, trainer / STATE, trainer / TENSORS, self.folder / METRICS)
        return self.weights_step if all(file.is_file() for file in files) else None


class FollowerRunFolder(RunFolder):
    """The run folder for every process except the first; it writes only this process's shards of tensors."""

    def clear(self) -> None:
        self.step = None

    def _put_weights(self, model: nn.Module, step: int) -> None:
        self.best(model, step)

    def _put_trainer(self, step: int, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        _write_shards(self.folder / TRAINER / str(step), tensors)

    def metrics(self, metric: Metric, size: int = 0, about: Mapping[str, Any] | None = None) -> Metrics:
        return SilentMetrics()

    def tidy(self) -> None:
        """Remove nothing: the first process does."""

    def best(self, model: nn.Module, step: int) -> None:
        """Take part in gathering sharded weights; the first process writes the model."""
        for _ in tensors_of(model):
            pass


def _remove_within(folder: Path, names: re.Pattern[str]) -> None:
    """Remove the files and folders with some names from a folder, and the folder itself if it is then empty."""
    if folder.is_dir():
        for path in folder.iterdir():
            if names.fullmatch(path.name):
                remove(path)
        with suppress(OSError):
            folder.rmdir()


def _sum(state: dict[str, Any]) -> str:
    """Return a hash of the training state."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write this process's shards of the sharded tensors, if there are any."""
    if shards := {name: tensor for name, tensor in tensors.items() if is_sharded(tensor)}:
        from kinformer.lab.train.fsdp import write_shards

        write_shards(folder / SHARDS, shards)
