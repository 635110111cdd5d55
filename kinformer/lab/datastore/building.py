"""Building: a text is read, and a shard of its keys after the other put on the disk, whole or not at all."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.checkpoint.checkpoint import formatted
from kinformer.checkpoint.files import sync, write
from kinformer.core.checks import at_least, one_of
from kinformer.core.evaluating import evaluating
from kinformer.decoding.saved import fingerprint
from kinformer.lab.data.support.split_tokens import SplitTokens as Text
from kinformer.lab.datastore.indexing import forget
from kinformer.lab.datastore.manifest import BUILDING, MANIFEST, Manifest, Part, keys_file, text_file
from kinformer.lab.datastore.shards import DatastoreError, digest, mapped
from kinformer.lab.datastore.windows import Window, read, shards
from kinformer.models.support.taps import Tap

Dtype = Literal["float16", "float32"]
SHARD = 1 << 26  # bytes of keys: what a kill may lose, and what is held in memory
LEAST = 1  # keys of a shard
LOST = 0.01  # of the deviation of keys, that rounding may change
TINY = 1e-12  # rounding error that remains when equal squares are subtracted


@dataclass(frozen=True)
class Plan:
    """A part to be made: the model's tap, its text, and what the datastore says once it is done."""

    tap: Tap
    text: Text
    manifest: Manifest
    shards: tuple[tuple[Window, ...], ...]

    @property
    def part(self) -> Part:
        """What the part says of itself."""
        return self.manifest.parts[-1]

    @property
    def number(self) -> int:
        """Which part of the datastore it is."""
        return len(self.manifest.parts) - 1


def planned(
    tap: Tap, text: Text, data: str, tokenizer: str, home: str, *, dtype: Dtype, length: int, stride: int, shard: int
) -> Plan:
    """A datastore of one part. ValueError where the text has no token with one after it, or tokens it cannot keep."""
    one_of("dtype", dtype, Dtype)
    signed = text.tokens.dtype.is_signed  # PyTorch has no < for unsigned numbers of two bytes and more
    if text.tokens.is_floating_point() or (signed and bool((text.tokens < 0).any())):
        raise ValueError(f"a text of {text.tokens.dtype} came; give tokens, whole numbers from 0")
    least = max(LEAST, shard // (tap.width * (2 if dtype == "float16" else 4)))
    found = tuple(map(tuple, shards(text, at_least("length", length, 1), at_least("stride", stride, 0), least)))
    if not found:
        raise ValueError(f"{data} has no token with one after it, and so no key; give more text")
    if stride > length:
        raise ValueError(f"stride={stride} leaves out tokens between windows of {length}; give 1 to {length}")
    counts = tuple(sum(window.keys for window in some) for some in found)
    begins = text.firsts.long()
    part = Part(
        data, len(text.tokens), len(begins), length, stride, digest(text.tokens.numpy(), text.firsts.numpy()), counts
    )
    return Plan(
        tap, text, Manifest(fingerprint(tap.model), tokenizer, tap.name, dtype, tap.width, home, (part,)), found
    )


def build(plan: Plan, folder: Path, *, append: bool, resume: bool, hear: Callable[[int], None]) -> None:
    """Put a part's files into a folder, and then into its manifest, so that a datastore is there once it is whole.

    `hear` is told how many keys are there. What is there is refused, or continued with `append`; what was begun and not
    finished is refused unless `resume`, and goes on behind the last whole shard.

    Errors: DatastoreError in one line, OSError where the disk is full or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder}: {error.strerror}") from error
    with alone(folder):
        plan = _beside(plan, folder, append, resume)
        if plan.part in _parts(folder)[plan.number :]:  # a kill behind the last write
            (folder / BUILDING).unlink(missing_ok=True)
            return
        if not (folder / BUILDING).is_file():
            plan.manifest.save(folder / BUILDING)
        begins = plan.text.firsts.long()
        _put(folder / text_file(plan.number), {"tokens": plan.text.tokens.to(torch.int32), "begins": begins})
        with evaluating(plan.tap.model):
            for shard, count in enumerate(plan.part.shards):
                path = folder / keys_file(plan.number, shard)
                if not _there(path, plan.manifest, count):
                    write(path, formatted({"keys": _keys(plan, shard, hear)}, {}))
                hear(sum(plan.part.shards[: shard + 1]))
        forget(folder)
        plan.manifest.save(folder / MANIFEST)
        (folder / BUILDING).unlink()
        sync(folder)


def _beside(plan: Plan, folder: Path, append: bool, resume: bool) -> Plan:
    """The plan with the parts that are there before its own; DatastoreError where it must not go on."""
    there = _parts(folder)
    begun = Manifest.load(folder / BUILDING) if (folder / BUILDING).is_file() else None
    if begun is not None and not resume:
        raise DatastoreError(f"the datastore in {folder} was begun and not finished; go on with --resume, or remove it")
    if begun is None and there and not append and not (resume and there[-1] == plan.part):
        raise DatastoreError(f"there is a datastore in {folder} already; give --append, or another folder")
    if begun is None and not there and any(folder.glob("*.safetensors")):
        raise DatastoreError(f"{folder} holds files of something else; give another folder")
    known = begun or (Manifest.load(folder / MANIFEST) if there else replace(plan.manifest, parts=()))
    its = begun is not None or not append or (resume and there[-1:] == (plan.part,))  # the last part is this one
    before = known.parts[:-1] if its else known.parts
    whole = replace(plan.manifest, parts=(*before, plan.part))
    _refuse_other(known, whole, folder, begun is not None)
    return replace(plan, manifest=whole)


def _parts(folder: Path) -> tuple[Part, ...]:
    return Manifest.load(folder / MANIFEST).parts if (folder / MANIFEST).is_file() else ()


def _refuse_other(known: Manifest, new: Manifest, folder: Path, begun: bool) -> None:
    """DatastoreError where a datastore is of other keys than those that would be put beside them."""
    what = {
        "model": "another model: its weights or keywords differ",
        "tokenizer": "another tokenizer",
        "tap": f"the inner state {known.tap!r}",
        "dtype": f"keys in {known.dtype}",
        "width": f"keys of width {known.width}",
    }
    for name, told in what.items():
        if getattr(known, name) != getattr(new, name):
            raise DatastoreError(f"the datastore in {folder} is of {told}; give the same, or another folder")
    if begun and known.parts[-1] != new.parts[-1]:
        ours, theirs = new.parts[-1], known.parts[-1]
        names = [name for name in ("data", "tokens", "documents", "length", "stride", "text", "shards")]
        name = next(name for name in names if getattr(ours, name) != getattr(theirs, name))
        raise DatastoreError(
            f"the datastore in {folder} was begun with another {name}: go on with the same --data, --length and "
            "--stride, or remove it"
        )


def _there(path: Path, manifest: Manifest, count: int) -> bool:
    """Is this shard whole on the disk?"""
    try:
        mapped(path, {"keys": (manifest.dtype, (count, manifest.width))})
    except DatastoreError:
        return False
    return True


def _keys(plan: Plan, shard: int, hear: Callable[[int], None]) -> Float[Tensor, "n D"]:
    """The keys of a shard."""
    dtype, done = getattr(torch, plan.manifest.dtype), sum(plan.part.shards[:shard])
    keys = torch.empty(plan.part.shards[shard], plan.manifest.width, dtype=dtype, device="cpu")
    rounding = Rounding(plan.manifest.width)
    for first, states in read(plan.tap, plan.text, plan.shards[shard], plan.part.length):
        keys[first : first + len(states)] = states.to("cpu", dtype)
        rounding.add(states.to("cpu"), keys[first : first + len(states)])
        done += len(states)
        hear(done)
    if not bool(keys.isfinite().all()):
        finite = (
            "begin again with --dtype float32 in another folder"
            if dtype == torch.float16 and not bool(keys.isnan().any())
            else "the model says NaN or infinity of this text"
        )
        raise ValueError(f"a key is not finite in {plan.manifest.dtype}: {finite}")
    if (lost := rounding.share) > LOST:
        raise ValueError(
            f"{plan.manifest.dtype} cannot tell the keys apart: it rounds them by {lost:.1%} of their deviation. Build "
            "the datastore with --dtype float32 in another folder"
        )
    return keys


class Rounding:
    """Measures the rounding error of keys in a narrower dtype, relative to their deviation from the mean."""

    def __init__(self, width: int) -> None:
        self.count, self.changed = 0, 0.0
        self.sums, self.squares = (torch.zeros(width, dtype=torch.float64, device="cpu") for _ in range(2))
        self.origin: Tensor | None = None  # near which sums of squares lose no digits

    def add(self, states: Float[Tensor, "n D"], kept: Float[Tensor, "n D"]) -> None:
        """Add keys before and after rounding."""
        if states.dtype == kept.dtype or not len(states):
            return
        wide = states.double()
        self.origin = wide[0] if self.origin is None else self.origin
        self.count += len(states)
        self.changed += float((kept.double() - wide).square().sum())
        away = wide - self.origin
        self.sums += away.sum(0)
        self.squares += away.square().sum(0)

    @property
    def share(self) -> float:
        """RMS rounding error over RMS distance from the mean; 0 if all keys are equal."""
        apart = float((self.squares - self.sums.square() / max(self.count, 1)).clamp_min(0).sum())
        return (self.changed / apart) ** 0.5 if apart > TINY * float(self.squares.sum()) else 0.0


def _put(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors into a file in one step, unless they are there."""
    data = formatted(tensors, {})
    if not path.is_file() or path.read_bytes() != data:
        write(path, data)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No other process builds in this folder; DatastoreError where one does. A kill ends it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DatastoreError(
                f"another process is building in {folder}; wait for it, or give another folder"
            ) from error
        yield
    finally:
        os.close(handle)
