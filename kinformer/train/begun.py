"""Begun: what a training must be begun with again to go on: its member, its settings, its data."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from kinformer.core.model import Model
from kinformer.data.kind import Data
from kinformer.data.support.fingerprint import PREFIX
from kinformer.data.support.words import options_of
from kinformer.train.checkpoint import recorded
from kinformer.train.recipe import Recipe
from kinformer.train.settings import Settings

KEPT = ("batch", "length", "seed", "decay", "clip", "accumulate", "precision")
DEFAULTS: dict[str, Any] = json.loads(json.dumps({name: getattr(Settings(), name) for name in KEPT} | asdict(Recipe())))
LOOKED_AT, BLOCKS = 4096, 64  # numbers of a block, and blocks, that tell data from other data


class ResumeError(ValueError):
    """A training that was begun with something else; the message names what differs, in one line."""


def begun(model: Model, data: Any, settings: Settings) -> dict[str, Any]:
    """All that the steps of a training follow from, but how long it is."""
    record = recorded(model)
    found: dict[str, Any] = {
        "member": record.name,
        "data": getattr(data, "name", type(data).__name__),  # before the keywords that follow from it, as vocab
        "bytes": fingerprint(data),
        "drawing": dict(data.drawing) if isinstance(data, Data) else {},
        "keywords": record.keywords,
        "settings": {name: getattr(settings, name) for name in KEPT} | asdict(settings.recipe(model)),
    }
    return json.loads(json.dumps(found))


def refuse_others(where: object, before: dict[str, Any], model: Model, data: Any, settings: Settings) -> None:
    """ResumeError, which names what differs, where a training was begun with something else.

    The name of the same data may be another. A setting or a keyword that an earlier version did not know had its
    default value.
    """
    now = in_form_of(before, begun(model, data, settings), data)
    keywords = json.loads(json.dumps(recorded(model).defaults))
    if "settings" in before:
        settings_before = DEFAULTS | before["settings"]
        words = difference(before | {"settings": settings_before, "keywords": keywords | before["keywords"]}, now)
    else:
        words = _since_then(keywords | before, now)
    if words is not None:
        raise ResumeError(
            f"the training in {where} was begun with {words}; give the same to go on, or begin another in a folder of "
            "its own"
        )


def in_form_of(before: Mapping[str, Any], now: dict[str, Any], data: Any) -> dict[str, Any]:
    """`now`, with the fingerprint of an earlier version if the record `before` has one of that form."""
    old = before.get("bytes")
    if isinstance(old, str) and not old.startswith(PREFIX) and isinstance(data, Data):
        return now | {"bytes": sampled_fingerprint(data)}
    return now


def _since_then(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What differs from the record of an earlier version: all in one, its data named without options."""
    sections = ("keywords", "settings", "drawing")
    flat = {name: value for section in sections for name, value in now[section].items()}
    words = difference(DEFAULTS | {**before, "bytes": None}, {"member": now["member"], **flat})
    if words is None and before["bytes"] != now["bytes"]:
        return f"data={before['data']}, and other bytes, of {now['data']}, came"
    return words


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first part in which two records differ, as "batch=3, and 4 came"; None where they are of the same.

    `data` and `bytes` of a record are a name of its data and a fingerprint; data of one fingerprint is the same.
    """
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if name == "data" or old == new:
            continue
        if name == "bytes":
            return _other_data(str(before["data"]), str(now["data"]))
        if not isinstance(old, dict) or not isinstance(new, dict):
            return f"{name}={old}, and {new} came"
        if (words := difference(old, new)) is not None:
            return words
    return None


def _other_data(old: str, new: str) -> str:
    """The options in which two names of data differ; where the names are the same, that what they name has changed."""
    if old == new:
        return f"other contents of {old}, which has changed since"
    (was, before), (its, now) = options_of(old), options_of(new)
    if was != its:
        return f"data={old}, and {new} came"
    names = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    one, other = (
        ", ".join(f"{name}={options[name]}" if name in options else f"no {name}=" for name in names)
        for options in (before, now)
    )
    return f"{one} in its data, and {other} came"


def fingerprint(data: Any) -> str | None:
    """A hash of all training and validation data; None for batches, which may be drawn."""
    return data.fingerprint if isinstance(data, Data) else None


def sampled_fingerprint(data: Data) -> str:
    """The fingerprint in the records of earlier versions: a hash of 64 blocks from all over the data."""
    found = [piece for split in ("train", "valid") for piece in _looked_at(getattr(data, split, None))]
    begins = getattr(data, "begins", None) or {}  # the same bytes as other documents are other data
    return _hashed(*found, *(piece for split in sorted(begins) for piece in _looked_at(begins[split])))


def _looked_at(held: Any) -> list[bytes]:
    """Of a tensor its shape and blocks from everywhere, since gigabytes need not be read; of others all."""
    if isinstance(held, tuple) and any(isinstance(part, Tensor) for part in held):
        return [piece for part in held for piece in _looked_at(part)]
    if not isinstance(held, Tensor):
        return [repr(held).encode()]
    row, size = max(held[:1].numel(), 1), len(held)
    each = max(LOOKED_AT // row, 1)
    firsts = {(size - each) * n // (BLOCKS - 1) for n in range(BLOCKS)} if size > each else {0}
    blocks = (held[first : first + each].contiguous().numpy().tobytes() for first in sorted(firsts))
    return [f"{tuple(held.shape)} {held.dtype}".encode(), *blocks]


def _hashed(*pieces: bytes) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()
