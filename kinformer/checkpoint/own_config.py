"""The config.json of a model of kinformer, read and checked."""

import math
from pathlib import Path
from typing import Any

from kinformer.checkpoint.model_files import TOKENIZER, CheckpointError, is_foreign, read_config
from kinformer.core.change import Change
from kinformer.core.model import ColumnScales, Metric

NO_TOKENIZER = "bytes"  # config entry for models without a tokenizer
UNKNOWN = "unknown"  # config entry for models that were trained on token ids alone
LONGEST = 2**40  # upper limit of trained_length
EDITION = 2  # version of the checkpoint format; the first had no number


def read_own_config(path: Path) -> dict[str, Any]:
    """Read and check a config that `save` wrote.

    path: the file.

    Errors: OSError if the file is missing. CheckpointError if it is damaged or has another format.
    """
    config = read_config(path)
    if is_foreign(config):
        raise CheckpointError(
            f"{path.parent} holds a Hugging Face model (model_type {config['model_type']!r:.40}), which kf.load reads, "
            "but this needs a folder that `kinformer train` or kf.save wrote"
        )
    if isinstance(config, dict) and "kinformer" in config and config.get("format") != EDITION:
        edition = config.get("format", 1)
        raise CheckpointError(
            f"{path} has another checkpoint format: got edition {edition}, expected edition {EDITION}. Train the model "
            "again, or load it with the version of kinformer that wrote it"
        )
    form = {"member": str, "keywords": dict, "kinformer": str, "tokenizer": str}
    wrong = [key for key, kind in form.items() if not isinstance(config, dict) or not isinstance(config.get(key), kind)]
    if wrong:
        raise CheckpointError(f"{path} was not written by kinformer: it has no {wrong[0]!r}")
    length, metric = config.get("trained_length"), config.get("metric")
    if length is not None and (type(length) is not int or not 0 < length < LONGEST):
        raise CheckpointError(
            f"{path} is damaged: got trained_length={length!r:.40}, expected a number of tokens or null"
        )
    if not isinstance(config.get("trained_on"), str | None):
        raise CheckpointError(
            f"{path} is damaged: got trained_on={config['trained_on']!r:.40}, expected the name of data or null"
        )
    if metric is not None and not is_metric(metric):
        raise CheckpointError(
            f"{path} is damaged: got metric={metric!r:.40}, expected {', '.join(Metric._fields)}, or null"
        )
    labels = config.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise CheckpointError(f"{path} is damaged: got labels={labels!r:.40}, expected a list of names")
    if "columns" in config and not _is_column_scales(config["columns"]):
        fields = ", ".join(ColumnScales._fields)
        raise CheckpointError(
            f"{path} is damaged: got columns={config['columns']!r:.40}, expected lists of equal length of {fields}. "
            "Put a copy of the file there."
        )
    changes = config.get("changes", [])
    if not isinstance(changes, list) or not all(_is_change(change) for change in changes):
        raise CheckpointError(f"{path} is damaged: got changes={changes!r:.40}, expected a list of names with options")
    if config["tokenizer"] not in (names := (NO_TOKENIZER, TOKENIZER, UNKNOWN)):
        raise CheckpointError(
            f"{path} has an unknown tokenizer: got {config['tokenizer']!r}, expected {', '.join(map(repr, names))}"
        )
    return config


def is_metric(value: object) -> bool:
    """Return True for a dict with the fields of a `Metric`, as `Metric._asdict()` makes it.

    value: value from a config.
    """
    if not isinstance(value, dict) or set(value) != set(Metric._fields):
        return False
    choices = value["better"] in ("less", "more") and value["per"] in ("token", "row", "byte")
    return choices and all(isinstance(value[name], str) for name in ("name", "unit"))


def _is_change(value: object) -> bool:
    """True for the JSON of a `Change`."""
    if not isinstance(value, dict) or set(value) != set(Change._fields):
        return False
    return isinstance(value["name"], str) and isinstance(value["options"], dict)


def _is_column_scales(value: object) -> bool:
    """True for the JSON of a `ColumnScales`: a name, a finite mean and a finite deviation above 0 for each column."""
    if not isinstance(value, dict) or set(value) != set(ColumnScales._fields):
        return False
    if not all(isinstance(part, list) and len(part) == len(value["names"]) for part in value.values()):
        return False
    numbers = [*value["mean"], *value["deviation"]]
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
        return False
    return all(isinstance(name, str) for name in value["names"]) and all(number > 0 for number in value["deviation"])
