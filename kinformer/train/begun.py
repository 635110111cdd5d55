"""Begun: what a training must be begun with again to go on: its member, its settings, its data."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from torch import Tensor

from kinformer.core.model import Model
from kinformer.data.kind import Data
from kinformer.train.checkpoint import recorded
from kinformer.train.settings import Settings

KEPT = ("batch", "length", "seed", "decay", "clip", "accumulate", "precision")
LOOKED_AT, BLOCKS = 4096, 64  # numbers of a block, and blocks, that tell data from other data


class ResumeError(ValueError):
    """A training that was begun with something else; the message names what differs, in one line."""


def begun(model: Model, data: Any, settings: Settings) -> dict[str, Any]:
    """All that the steps of a training follow from, but how long it is."""
    record = recorded(model)
    found: dict[str, Any] = {"member": record.name, **record.keywords}
    found |= {name: getattr(settings, name) for name in KEPT} | asdict(settings.recipe(model))
    found |= {"data": getattr(data, "name", type(data).__name__), "bytes": fingerprint(data)}
    found |= data.drawing if isinstance(data, Data) else {}
    return json.loads(json.dumps(found))


def refuse_others(where: object, before: dict[str, Any], now: dict[str, Any]) -> None:
    """ResumeError where a training was begun with something else; the name of the same data may be another."""
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if name == "data" or old == new:
            continue
        if name == "bytes":
            old, new, name = before["data"], f"other bytes, of {now['data']},", "data"
        raise ResumeError(
            f"the training in {where} was begun with {name}={old}, and {new} came; give the same to go on, or begin "
            "another in a folder of its own"
        )


def fingerprint(data: Any) -> str | None:
    """What tells data from other data: what it holds in `train` and `valid`; None for batches, which may be drawn."""
    if not isinstance(data, Data):
        return None
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
