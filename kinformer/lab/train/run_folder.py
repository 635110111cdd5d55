"""Run: the folder of a training, in which a kill at any moment leaves a whole checkpoint.

    config.json, model.safetensors   the model as it was last saved
    best/                            the same two files of the best by the metric on valid
    trainer/STEP/                    what the training needs to go on from there: trainer.json, trainer.safetensors,
                                     and shards/, what is spread over processes, as each of them wrote it
    metrics.jsonl                    a line for each step and each measurement

The weights say of which step they are. What belongs to them is written before they are put in place and taken away
after others were, so the one rename of model.safetensors is what makes a save hold.
"""

import hashlib
import json
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
from kinformer.checkpoint.checkpoint import (
    CheckpointError,
    check_same_model,
    is_sharded,
    load_tensors,
    read_tensors,
    save,
    tensors_of,
)
from kinformer.checkpoint.model_files import BEST, CONFIG, WEIGHTS
from kinformer.core.from_json import from_json
from kinformer.core.model import Metric
from kinformer.lab.train.history import METRICS, Metrics, SilentMetrics

TRAINER = "trainer"
STATE, TENSORS, SHARDS = "trainer.json", "trainer.safetensors", "shards"
EDITION = 2  # the first had no sums


class RunFolder:
    """The folder of a training. `step` is that of the checkpoint it holds, None where it holds no whole one."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.weights_step = self._read_weights_step()
        self.step = self._read_step()

    def find_damage(self) -> str | None:
        """Why weights that are there cannot be read, as no kill leaves them; None where they can, or none are."""
        weights = self.folder / WEIGHTS
        if self.step is not None or not weights.is_file():
            return None
        try:
            read_tensors(weights)
        except (CheckpointError, OSError) as error:
            return str(error)
        return None

    def missing_trainer(self) -> str | None:
        """What is missing beside weights that are there, so that they cannot be gone on with; None where nothing is."""
        trainer = self.folder / TRAINER
        if self.step is not None or not (self.folder / WEIGHTS).is_file() or trainer.is_dir():
            return None
        return f"there is no {trainer} to go on from"

    def clear(self) -> None:
        """Make room for a training that begins: nothing is left that could go on, or pass for its best.

        The weights that are there stay until others take their place.
        """
        for name in (METRICS, TRAINER, BEST):  # without the first nothing goes on: a folder is removed file by file
            remove(self.folder / name)
        self.step = None

    def save(self, model: nn.Module, step: int, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Keep the model and what its training needs to go on; the save before stays whole until this one is.

        Nothing changes between steps, so a step that is there already is not written again. OSError in one clear line.
        """
        if step == self.step:
            return
        # weights of the training before this one may say the same step: nothing is put beside them then
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
        """Where there is no room for the weights, leave none taken for what belongs to them."""
        try:
            self._put_weights(model, step)
        except OSError:
            with suppress(OSError):
                remove(self.folder / TRAINER / str(step))
                (self.folder / TRAINER).rmdir()  # where no save before has its place there
            raise

    def _put_trainer(self, step: int, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        folder = self.folder / TRAINER / str(step)
        numbers = format_tensors({name: tensor for name, tensor in tensors.items() if not is_sharded(tensor)})
        state = {"format": EDITION, **state, "tensors_crc32": zlib.crc32(numbers)}
        text = json.dumps({**state, "sum": _sum(state)}, indent=2) + "\n"
        write_folder(folder, {STATE: text.encode(), TENSORS: numbers})
        _write_shards(folder, tensors)

    def metrics(self, metric: Metric, size: int = 0, about: Mapping[str, Any] | None = None) -> Metrics:
        """Open `metrics.jsonl` and keep its first `size` bytes; a new file starts with the metric and `about`."""
        return Metrics(self.folder, metric, size, about)

    def best(self, model: nn.Module, step: int) -> None:
        """Keep the best model so far."""
        save(model, self.folder / BEST, step=step)

    def state(self) -> dict[str, Any]:
        """What was written down of the training at its last save; CheckpointError where it is not whole."""
        path = self.folder / TRAINER / str(self.step) / STATE
        try:
            state = from_json(read_file(path))
        except OSError as error:
            raise CheckpointError(str(error)) from error
        except ValueError as error:
            raise CheckpointError(f"{path} is truncated or no JSON: {error}") from error
        if not isinstance(state, dict) or state.get("format") != EDITION:
            edition = state.get("format", 1) if isinstance(state, dict) else None
            raise CheckpointError(f"{path} is of another form: got edition {edition!r:.20}, expected edition {EDITION}")
        if state.pop("sum", None) != _sum(state):
            raise CheckpointError(f"{path} is damaged: it is not what was written; put it back")
        return state

    def restore(self, model: nn.Module) -> None:
        """Put the weights of the last save into the model; CheckpointError where it, or the best, is not whole."""
        for place in (self.folder, self.folder / BEST):
            if place.is_dir():
                check_same_model(place, model)
        weights, _ = read_tensors(self.folder / WEIGHTS)
        load_tensors(model, weights, self.folder / WEIGHTS)

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The tensors of the training at its last save; of what was spread each process gets what it holds now."""
        folder = self.folder / TRAINER / str(self.step)
        tensors, _ = read_tensors(folder / TENSORS)
        if crc32(folder / TENSORS) != self.state()["tensors_crc32"]:
            raise CheckpointError(f"{folder / TENSORS} is damaged: it is not what was written; put it back")
        if not (folder / SHARDS).is_dir():
            return tensors
        from kinformer.lab.train.fsdp import read_shards

        return tensors | read_shards(folder / SHARDS, dict(model.named_parameters()))

    def tidy(self) -> None:
        """Take away what belongs to other weights than those that are in place."""
        for other in (self.folder / TRAINER).iterdir():
            if other.name != str(self.step):
                remove(other)

    def _read_weights_step(self) -> int | None:
        """The step that the weights say they are of."""
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
    """The folder as a process sees it that is not the first: another one writes."""

    def clear(self) -> None:
        self.step = None

    def _put_weights(self, model: nn.Module, step: int) -> None:
        self.best(model, step)

    def _put_trainer(self, step: int, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        _write_shards(self.folder / TRAINER / str(step), tensors)

    def metrics(self, metric: Metric, size: int = 0, about: Mapping[str, Any] | None = None) -> Metrics:
        return SilentMetrics()

    def tidy(self) -> None:
        """Take nothing away."""

    def best(self, model: nn.Module, step: int) -> None:
        """Help to gather what is spread."""
        for _ in tensors_of(model):
            pass


def _sum(state: dict[str, Any]) -> str:
    """A hash of what is written down."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    if shards := {name: tensor for name, tensor in tensors.items() if is_sharded(tensor)}:
        from kinformer.lab.train.fsdp import write_shards

        write_shards(folder / SHARDS, shards)
