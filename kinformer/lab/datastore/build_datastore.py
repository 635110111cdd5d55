"""Building of a datastore: write the keys of a text to disk, in shards that are complete or absent."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.checkpoint.atomic_files import sync, write
from kinformer.checkpoint.weights_file import format_weights
from kinformer.core.checks import check_at_least, check_option
from kinformer.core.eval_mode import evaluating
from kinformer.decoding.saved_state import fingerprint
from kinformer.lab.data.support.split_tokens import SplitTokens as Text
from kinformer.lab.datastore.index_file import remove_index
from kinformer.lab.datastore.manifest import BUILDING, MANIFEST, DatastorePart, Manifest, keys_file, text_file
from kinformer.lab.datastore.reading_windows import Window, read, shards
from kinformer.lab.datastore.shards import DatastoreError, digest, map_tensors
from kinformer.models.support.hidden_taps import Tap

Dtype = Literal["float16", "float32"]
SHARD = 1 << 26  # bytes of keys: lost at most if a build is killed, and held in memory
LEAST = 1  # keys of a shard
MAX_ROUNDING = 0.01  # the largest rounding error, as a share of the deviation of keys
TINY = 1e-12  # rounding error that remains when equal squares are subtracted


@dataclass(frozen=True)
class BuildPlan:
    """Plan of one build of a datastore, made by `plan_build` and carried out by `build`.

    A datastore consists of parts: one text each, added by one build.

    tap: reader of the hidden states of the model that are the keys.
    text: the text.
    manifest: the description of the finished datastore; its last part is the part to be built.
    shards: the windows of each shard.
    """

    tap: Tap
    text: Text
    manifest: Manifest
    shards: tuple[tuple[Window, ...], ...]

    @property
    def part(self) -> DatastorePart:
        """The manifest's entry for the part to be built."""
        return self.manifest.parts[-1]

    @property
    def number(self) -> int:
        """The number of the part to be built, from 0."""
        return len(self.manifest.parts) - 1


def plan_build(
    tap: Tap, text: Text, data: str, tokenizer: str, home: str, *, dtype: Dtype, length: int, stride: int, shard: int
) -> BuildPlan:
    """Plan the build of a datastore from one text.

    tap: reader of the hidden states of the model that are the keys.
    text: the text.
    data: a description of the text.
    tokenizer: hash of the tokenizer, or "bytes".
    home: folder of the model, or "".
    dtype: "float16" or "float32", for keys.
    length, stride: tokens of a window, and tokens from one window to the next. A stride of 0 reads lanes (long parallel
        pieces of the text).
    shard: least bytes of keys in a file (shard).

    Errors: ValueError if no token of the text has a next token, or if its tokens are no whole numbers from 0.
    """
    check_option("dtype", dtype, Dtype)
    signed = text.tokens.dtype.is_signed  # PyTorch has no < for unsigned numbers of two bytes and more
    if text.tokens.is_floating_point() or (signed and bool((text.tokens < 0).any())):
        raise ValueError(f"wrong text: got {text.tokens.dtype}, expected tokens: whole numbers of at least 0")
    least = max(LEAST, shard // (tap.width * (2 if dtype == "float16" else 4)))
    windows = tuple(
        map(tuple, shards(text, check_at_least("length", length, 1), check_at_least("stride", stride, 0), least))
    )
    if not windows:
        raise ValueError(f"{data} is too short for a datastore: no token has a next token. Give more text")
    if stride > length:
        raise ValueError(f"wrong stride for windows of {length}: got {stride}, expected 1 to {length}")
    counts = tuple(sum(window.keys for window in shard) for shard in windows)
    begins = text.document_starts.long()
    part = DatastorePart(
        data,
        len(text.tokens),
        len(begins),
        length,
        stride,
        digest(text.tokens.numpy(), text.document_starts.numpy()),
        counts,
    )
    return BuildPlan(
        tap, text, Manifest(fingerprint(tap.model), tokenizer, tap.name, dtype, tap.width, home, (part,)), windows
    )


def build(plan: BuildPlan, folder: Path, *, append: bool, resume: bool, on_progress: Callable[[int], None]) -> None:
    """Compute the keys of a plan and write its files into a folder.

    The manifest is written last, so an unfinished build is not taken for a datastore.

    plan: the plan.
    folder: the folder.
    append: True to add to a datastore in the folder; False refuses such a folder.
    resume: True to continue an unfinished build after its last complete shard; False refuses it.
    on_progress: called with the number of finished keys.

    Errors: DatastoreError in one line; OSError if the disk is full or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder}: {error.strerror}") from error
    with lock_folder(folder):
        plan = _add_known_parts(plan, folder, append, resume)
        if plan.part in _parts(folder)[plan.number :]:  # the previous build was killed after its last write
            (folder / BUILDING).unlink(missing_ok=True)
            return
        if not (folder / BUILDING).is_file():
            plan.manifest.save(folder / BUILDING)
        begins = plan.text.document_starts.long()
        _write_tensors(folder / text_file(plan.number), {"tokens": plan.text.tokens.to(torch.int32), "begins": begins})
        with evaluating(plan.tap.model):
            for shard, count in enumerate(plan.part.shards):
                path = folder / keys_file(plan.number, shard)
                if not _is_complete(path, plan.manifest, count):
                    write(path, format_weights({"keys": _keys(plan, shard, on_progress)}, {}))
                on_progress(sum(plan.part.shards[: shard + 1]))
        remove_index(folder)
        plan.manifest.save(folder / MANIFEST)
        (folder / BUILDING).unlink()
        sync(folder)


def _add_known_parts(plan: BuildPlan, folder: Path, append: bool, resume: bool) -> BuildPlan:
    """Return the plan with the folder's parts before its own part; DatastoreError if it must not be built there."""
    parts = _parts(folder)
    begun = Manifest.load(folder / BUILDING) if (folder / BUILDING).is_file() else None
    if begun is not None and not resume:
        raise DatastoreError(f"the datastore in {folder} is unfinished; continue it with --resume, or remove it")
    if begun is None and parts and not append and not (resume and parts[-1] == plan.part):
        raise DatastoreError(f"{folder} already holds a datastore; add to it with --append, or give another folder")
    if begun is None and not parts and any(folder.glob("*.safetensors")):
        raise DatastoreError(f"{folder} holds other safetensors files; give another folder")
    old = begun or (Manifest.load(folder / MANIFEST) if parts else replace(plan.manifest, parts=()))
    is_last = begun is not None or not append or (resume and parts[-1:] == (plan.part,))
    before = old.parts[:-1] if is_last else old.parts
    new = replace(plan.manifest, parts=(*before, plan.part))
    _check_same_keys(old, new, folder, begun is not None)
    return replace(plan, manifest=new)


def _parts(folder: Path) -> tuple[DatastorePart, ...]:
    """Return the finished parts of the datastore in a folder."""
    return Manifest.load(folder / MANIFEST).parts if (folder / MANIFEST).is_file() else ()


def _check_same_keys(old: Manifest, new: Manifest, folder: Path, begun: bool) -> None:
    """Raise DatastoreError unless a new part has the keys of the datastore.

    The model, tokenizer, tap, dtype and width must be equal. An unfinished part must be continued as it was begun.
    """
    descriptions = {
        "model": "belongs to another model: its weights or keywords differ",
        "tokenizer": "belongs to another tokenizer",
        "tap": f"has the hidden state {old.tap!r} as its keys",
        "dtype": f"has keys in {old.dtype}",
        "width": f"has keys of width {old.width}",
    }
    for name, description in descriptions.items():
        if getattr(old, name) != getattr(new, name):
            raise DatastoreError(
                f"the datastore in {folder} {description}; build with the same, or give another folder"
            )
    if begun and old.parts[-1] != new.parts[-1]:
        parts = asdict(new.parts[-1]), asdict(old.parts[-1])
        name = next(name for name in parts[0] if parts[0][name] != parts[1][name])
        raise DatastoreError(
            f"the unfinished datastore in {folder} has another {name}; continue it with the same --data, --length and "
            "--stride, or remove it"
        )


def _is_complete(path: Path, manifest: Manifest, count: int) -> bool:
    """Return True if this shard is complete on the disk."""
    try:
        map_tensors(path, {"keys": (manifest.dtype, (count, manifest.width))})
    except DatastoreError:
        return False
    return True


def _keys(plan: BuildPlan, shard: int, on_progress: Callable[[int], None]) -> Float[Tensor, "n D"]:
    """Compute the keys of a shard; ValueError if they are not finite, or if rounding blurs them."""
    dtype, done = getattr(torch, plan.manifest.dtype), sum(plan.part.shards[:shard])
    keys = torch.empty(plan.part.shards[shard], plan.manifest.width, dtype=dtype, device="cpu")
    rounding = Rounding(plan.manifest.width)
    for first, states in read(plan.tap, plan.text, plan.shards[shard], plan.part.length):
        keys[first : first + len(states)] = states.to("cpu", dtype)
        rounding.add(states.to("cpu"), keys[first : first + len(states)])
        done += len(states)
        on_progress(done)
    if not bool(keys.isfinite().all()):
        finite = (
            "build the datastore with --dtype float32 in another folder"
            if dtype == torch.float16 and not bool(keys.isnan().any())
            else "the model computes NaN or infinity for this text"
        )
        raise ValueError(f"a key is not finite in {plan.manifest.dtype}: {finite}")
    if (share := rounding.share) > MAX_ROUNDING:
        raise ValueError(
            f"{plan.manifest.dtype} is too coarse for the keys: rounding errors are {share:.1%} of their spread around "
            "the mean. Build the datastore with --dtype float32 in another folder"
        )
    return keys


class Rounding:
    """Measures the rounding error of keys in a narrower dtype, relative to their spread around the mean.

    width: number of coordinates of a key.
    """

    def __init__(self, width: int) -> None:
        self.count, self.changed = 0, 0.0
        self.sums, self.squares = (torch.zeros(width, dtype=torch.float64, device="cpu") for _ in range(2))
        self.origin: Tensor | None = None  # subtracted from keys, so that sums of squares lose no digits

    def add(self, states: Float[Tensor, "n D"], rounded: Float[Tensor, "n D"]) -> None:
        """Add keys before and after rounding."""
        if states.dtype == rounded.dtype or not len(states):
            return
        wide = states.double()
        self.origin = wide[0] if self.origin is None else self.origin
        self.count += len(states)
        self.changed += float((rounded.double() - wide).square().sum())
        away = wide - self.origin
        self.sums += away.sum(0)
        self.squares += away.square().sum(0)

    @property
    def share(self) -> float:
        """The RMS rounding error divided by the RMS distance of keys from their mean; 0 if all keys are equal."""
        apart = float((self.squares - self.sums.square() / max(self.count, 1)).clamp_min(0).sum())
        return (self.changed / apart) ** 0.5 if apart > TINY * float(self.squares.sum()) else 0.0


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors into a file in one step, unless the file holds them already."""
    data = format_weights(tensors, {})
    if not path.is_file() or path.read_bytes() != data:
        write(path, data)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from building a datastore in this folder while the context is entered.

    The lock also ends with the process.

    folder: the folder.

    Errors: DatastoreError if another process builds in it.
    """
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
