"""The record of a run's member (named model), settings and data; resuming needs the same ones."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from kinformer.checkpoint.checkpoint import member_record
from kinformer.core.model import Model
from kinformer.core.training_recipe import Recipe
from kinformer.lab.data.data import Data
from kinformer.lab.data.support.fingerprint import PREFIX, hashed_name
from kinformer.lab.data.support.spec_options import options_of
from kinformer.lab.train.settings import Settings

KEPT = ("batch", "length", "seed", "decay", "clip", "accumulate", "precision", "lora")
DEFAULTS: dict[str, Any] = json.loads(json.dumps({name: getattr(Settings(), name) for name in KEPT} | asdict(Recipe())))
LOOKED_AT, BLOCKS = 4096, 64  # numbers per block, and number of blocks, in a sampled fingerprint


Spell = Callable[[str, str, Any], str]  # (section, name, value) -> the argument by which a user gives that value


class ResumeError(ValueError):
    """Error of a run that cannot be resumed; it names the difference in its member, data or settings."""


def start_record(model: Model, data: Any, settings: Settings) -> dict[str, Any]:
    """Return everything that determines the steps of a training, except the length of the training.

    model: the model.
    data: the data.
    settings: the settings.
    """
    record = member_record(model)
    settled: dict[str, Any] = {
        "member": record.name,
        "data": getattr(data, "name", type(data).__name__),  # first: other data also changes keywords such as vocab
        "bytes": fingerprint(data),
        "drawing": dict(data.draw_settings) if isinstance(data, Data) else {},
        "keywords": record.keywords | {f"change {n}": list(change) for n, change in enumerate(record.changes)},
        "settings": {name: asdict(settings)[name] for name in KEPT} | asdict(settings.recipe(model)),
    }
    return json.loads(json.dumps(settled))


def as_argument(section: str, name: str, value: Any) -> str:
    """Format a setting or keyword as an argument in Python, such as "lr=0.003".

    section: the section of the record, which is ignored.
    name: name of the argument.
    value: its value.
    """
    return f"{name}={value}"


def refuse_others(
    where: object, before: dict[str, Any], model: Model, data: Any, settings: Settings, spell: Spell = as_argument
) -> None:
    """Refuse to resume a run that started with another member, other data or other settings.

    Data with the same contents may have another name. A setting or keyword that is missing in the record counts as its
    default value.

    where: the run folder, for the message.
    before: the record of the run.
    model, data, settings: the model, data and settings with which the user wants to resume.
    spell: formats a value as the user gives it; by default as an argument in Python.

    Errors: ResumeError that names the first difference.
    """
    now = in_form_of(before, start_record(model, data, settings), data)
    keywords = json.loads(json.dumps(member_record(model).defaults))
    if "settings" in before:
        settings_before = DEFAULTS | before["settings"]
        words = difference(
            before | {"settings": settings_before, "keywords": keywords | before["keywords"]}, now, spell
        )
    else:
        words = _difference_to_flat(keywords | before, now, spell)
    if words is not None:
        raise ResumeError(f"cannot resume {where}: {words}, or start another run in a new folder")


def in_form_of(before: Mapping[str, Any], now: dict[str, Any], data: Any) -> dict[str, Any]:
    """Return `now`, with the older form of the data's fingerprint if an earlier version wrote `before`.

    before: the record of the run.
    now: the record of the current arguments.
    data: the current data.
    """
    old = before.get("bytes")
    if isinstance(old, str) and not old.startswith(PREFIX) and isinstance(data, Data):
        return now | {"bytes": sampled_fingerprint(data)}
    return now


def _difference_to_flat(before: Mapping[str, Any], now: Mapping[str, Any], spell: Spell) -> str | None:
    """Describe the first difference to a flat record of an earlier version, which names its data without options."""
    sections = ("keywords", "settings", "drawing")
    flat = {name: value for section in sections for name, value in now[section].items()}
    words = difference(DEFAULTS | {**before, "bytes": None}, {"member": now["member"], **flat}, spell)
    if words is None and before["bytes"] != now["bytes"]:
        return (
            f"got {spell('', 'data', now['data'])}, expected the contents that {spell('', 'data', before['data'])} had "
            "when the run started. Pass those data"
        )
    return words


def difference(
    before: Mapping[str, Any], now: Mapping[str, Any], spell: Spell = as_argument, section: str = ""
) -> str | None:
    """Return the first difference of two records of runs, as a text for an error.

    The text is like "got batch=4, expected batch=3. Pass batch=3".

    It is None if there is no difference. In a record, "data" is the name of the data and "bytes" is a hash of their
    contents. Data with equal hashes are the same, whatever their names.

    before, now: the records.
    spell: formats a value as the user gives it.
    section: name of the section within a record.
    """
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if name == "data" or old == new:
            continue
        if name == "bytes":
            return _other_data(str(before["data"]), str(now["data"]), spell)
        if not isinstance(old, dict) or not isinstance(new, dict):
            new_word, expected = (spell(section, name, value) for value in (new, old))
            absent = expected.startswith("no ")
            advice = f"{'Leave out' if absent else 'Pass'} {expected.removeprefix('no ')}"
            return f"got {new_word}, expected {expected}. {advice}"
        if (words := difference(old, new, spell, name)) is not None:
            return words
    return None


def _other_data(old: str, new: str, spell: Spell) -> str:
    """Describe the options in which two names of data differ, or the changed contents if the names are equal."""
    if old == new:
        return f"the contents of {old} have changed since the run started. Restore them"
    (source_before, before), (source_now, now) = options_of(old), options_of(new)
    if source_before != source_now:
        new_word, expected = (spell("", "data", name) for name in (new, old))
        return f"got {new_word}, expected {expected}. Pass {expected}"
    names = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    expected, new_word = (
        ", ".join(f"{name}={options[name]}" if name in options else f"no {name}=" for name in names)
        for options in (before, now)
    )
    return f"got {new_word}, expected {expected} in --data. Pass {expected}"


def fingerprint(data: Any) -> str | None:
    """Return a hash of all training and validation data; None for `Batches`, which may be random.

    data: the data.
    """
    return data.fingerprint if isinstance(data, Data) else None


def sampled_fingerprint(data: Data) -> str:
    """Return the fingerprint that earlier versions recorded: a hash of 64 blocks from all over the data.

    data: the data.
    """
    pieces = [piece for split in ("train", "valid") for piece in _sample_pieces(getattr(data, split, None))]
    begins = getattr(data, "begins", None) or {}  # equal bytes split into other documents are different data
    return _hash(*pieces, *(piece for split in sorted(begins) for piece in _sample_pieces(begins[split])))


def _sample_pieces(value: Any) -> list[bytes]:
    """Return the shape of a tensor and blocks from all over it, because it may be large; other values whole."""
    if isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value):
        return [piece for part in value for piece in _sample_pieces(part)]
    if not isinstance(value, Tensor):
        return [repr(value).replace(type(value).__qualname__, hashed_name(value), 1).encode()]
    row, size = max(value[:1].numel(), 1), len(value)
    each = max(LOOKED_AT // row, 1)
    firsts = {(size - each) * n // (BLOCKS - 1) for n in range(BLOCKS)} if size > each else {0}
    blocks = (value[first : first + each].contiguous().numpy().tobytes() for first in sorted(firsts))
    return [f"{tuple(value.shape)} {value.dtype}".encode(), *blocks]


def _hash(*pieces: bytes) -> str:
    """Return the SHA-256 of the pieces, one after the other."""
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return sha.hexdigest()
