"""Datastore: what a trained language model made of every token of a text, and which token came next."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from kinformer.checkpoint.checkpoint import load
from kinformer.core.checks import at_least
from kinformer.core.evaluating import evaluating
from kinformer.core.neighbours import Neighbours, Store
from kinformer.core.search import Index, Search
from kinformer.decoding.saved import fingerprint
from kinformer.lab.data.support.split_tokens import SplitTokens as Text
from kinformer.lab.datastore import indexing
from kinformer.lab.datastore.building import SHARD, Dtype, build, planned
from kinformer.lab.datastore.manifest import BUILDING, MANIFEST, Manifest, Part, keys_file, text_file
from kinformer.lab.datastore.shards import DatastoreError, Shards, digest, mapped
from kinformer.models.support.taps import LAST_FFN_INPUT, Tap
from kinformer.nn.search.exact import Exact

__all__ = ["Context", "Datastore", "DatastoreError"]
BYTES = "bytes"  # in place of a tokenizer's hash
LENGTH = 128  # of a window, where a model says none


class Context(NamedTuple):
    """Where a key comes from: tokens of its document up to its own, the one that came next, and those behind it."""

    before: list[int]
    next: int
    after: list[int]
    document: int
    data: str


class KeyModel(NamedTuple):
    """A datastore, the model that made its keys, and the name of the tap that reads such keys."""

    store: Store
    model: Any
    tap: str


class Datastore(Store):
    """Pairs of a key, a language model's inner state at a token, and the token that came next, on a disk.

    Choose it to let a model look up what came after what it has read, in a text of any size and without training: keys
    stay on the disk, and a search holds a block of them in memory. It is written by `Datastore.build` or
    `kinformer datastore build`, in shards that are whole or not there, and belongs to the weights and the tokenizer
    that made it.

    `Datastore.open(path)`, then `search(queries, k)`; `queries` are what `models.support.taps.Tap` reads off the model
    at `store.tap`.

    manifest: what it says of itself. texts: of each part. keys: of all parts, one after the other. index: by which they
    are searched: `Exact()`, every key looked at, unless given.

    Errors: DatastoreError, a ValueError of one line, for a folder that is none, not finished or truncated, for a
    damaged text, and by `check` for another model's; the numbers of keys are not looked through, which would take as
    long as a search. Source: Khandelwal et al., 2020, arXiv:1911.00172, section 2.
    """

    def __init__(self, manifest: Manifest, texts: Sequence["Source"], keys: Shards, index: Index | None = None):
        self.manifest, self.texts, self.keys = manifest, tuple(texts), keys
        self.starts = torch.tensor([0, *(one.keys for one in texts)], device="cpu").cumsum(0)
        self.index = Exact().index(keys) if index is None else index

    @classmethod
    def open(cls, path: str | Path, search: Search | None = None) -> "Datastore":
        """The datastore in a folder; DatastoreError where there is none, or one that is not whole.

        search: how its keys are found; by the index that was kept beside them, or else exactly, unless given.
        """
        folder = Path(path)
        if not (folder / MANIFEST).is_file():
            begun = "it was not finished: go on with --resume" if (folder / BUILDING).is_file() else "build one"
            raise DatastoreError(f"there is no datastore in {folder}; {begun} (kinformer datastore build)")
        manifest = Manifest.load(folder / MANIFEST)
        maps, texts = [], []
        for number, part in enumerate(manifest.parts):
            texts.append(Source.open(folder / text_file(number), part))
            for shard, count in enumerate(part.shards):
                wanted = {"keys": (manifest.dtype, (count, manifest.width))}
                maps.append(mapped(folder / keys_file(number, shard), wanted)["keys"])
        keys, kept = Shards(maps, manifest.width), indexing.there(folder) if search is None else None
        if kept is not None:
            return cls(manifest, texts, keys, indexing.opened(folder, kept, keys))
        return cls(manifest, texts, keys, None if search is None else search.index(keys))

    @classmethod
    def with_model(cls, path: Path, frozen: str | None = None) -> KeyModel:
        """A datastore, the model that made its keys, and the tap that reads them.

        frozen: the folder of that model; where the datastore says, unless given.

        Errors: DatastoreError, in one line, if the datastore or the model is missing or unreadable.
        """
        if not path.is_dir():
            raise DatastoreError(
                f"there is no datastore in {path.absolute()}, where this member looks for it; put it there, or give "
                "--datastore its place"
            )
        store = cls.open(path)
        home = Path(frozen) if frozen else store.home(path)
        if home is None or not home.is_dir():
            was = f"is not in {store.manifest.home}, nor beside them" if store.manifest.home else "was in no folder"
            where = f"is not in {frozen}" if frozen else was
            raise DatastoreError(f"the model that made the keys of {path} {where}; give frozen=FOLDER")
        try:
            model = load(home)
        except FileNotFoundError as error:
            raise DatastoreError(f"what made the keys of {path} cannot be read: {error}; give frozen=FOLDER") from error
        store.check(model)
        return KeyModel(store, model, Tap(model, store.tap).place)

    @classmethod
    def build(
        cls,
        folder: str | Path,
        model: Any,
        text: Tensor | Text,
        *,
        data: str = "a text",
        home: str = "",
        tap: str = LAST_FFN_INPUT,
        dtype: Dtype = "float16",
        length: int | None = None,
        stride: int | None = None,
        shard: int = SHARD,
        append: bool = False,
        resume: bool = False,
        hear: Callable[[int], None] = lambda keys: None,
    ) -> "Datastore":
        """Write what a model makes of a text into a folder, and open it.

        A kill at any moment loses a shard at most: with `resume` it goes on behind the last whole one, and the files
        are then, bit for bit, those of a build that was never killed.

        text: tokens, or a `Part`, whose documents are read each by itself.
        data: what it is, in words, for those who look at what was found.
        home: the folder of the model, for those who ask again.
        tap: which state of the model is the key (`models.support.taps.Tap`).
        dtype: float16, or float32 in twice the room.
        length: tokens of a window, the model's own of training unless given; and no more than it has learned positions.
        stride: tokens from one window to the next, half of one unless given, so that a key has at least
            length - stride tokens before it. A model that is trained on lanes reads lanes unless it is given.
        shard: bytes of keys in a file, at least.
        append: put it behind what the datastore has.
        resume: go on with what was begun.
        hear: told how many keys there are.

        Errors: DatastoreError for a folder with something else, ValueError for a text without a pair of tokens and for
        keys that are not finite, OSError where the disk is full.
        """
        with evaluating(model):
            found = Tap(model, tap)
        if length is None:
            length = model.trained_length or LENGTH
        length = length if model.window is None else min(length, model.window)
        stride = (0 if model.lanes else max(length // 2, 1)) if stride is None else stride
        if not stride and not model.lanes:
            raise ValueError(f"stride={stride} carries a state, and this model is not trained so; give 1 to {length}")
        plan = planned(
            found,
            Text.of(text),
            data,
            tokenizer_of(model),
            home,
            dtype=dtype,
            length=length,
            stride=stride,
            shard=shard,
        )
        build(plan, Path(folder), append=append, resume=resume, hear=hear)
        return cls.open(folder)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Datastore":
        """Itself: a copy of a model looks up the same files, and holds no keys in memory."""
        return self

    def __len__(self) -> int:
        return self.keys.count

    @property
    def width(self) -> int:
        """How many numbers a key has."""
        return self.manifest.width

    @property
    def tap(self) -> str:
        """Which state of the model the keys are, as `Tap` takes it."""
        return self.manifest.tap

    def home(self, folder: Path) -> Path | None:
        """The folder of the model that made the keys: where it was, or beside the datastore, which lies in `folder`.

        None where there is none by its name; whether it is still the same, `check` says.
        """
        was = Path(self.manifest.home)
        places = (was, folder.resolve().parent / was.name) if self.manifest.home else ()
        return next((place for place in places if place.is_dir()), None)

    def check(self, model: Any) -> None:
        """DatastoreError unless the keys are of this model: its weights, keywords and tokenizer."""
        if self.manifest.tokenizer != tokenizer_of(model):
            raise DatastoreError("the datastore is of another tokenizer than the model; build one with this model")
        if self.manifest.model != fingerprint(model):
            raise DatastoreError(
                "the datastore is of another model: its weights or keywords differ; build one with this model"
            )

    def search(self, queries: Float[Tensor, "N D"], k: int) -> Neighbours:
        """The k keys nearest to each query, nearest first, equally near ones in order, and what came after them.

        Computed on the CPU; what is found is on the device of the queries. ValueError for k below 1, another width, and
        queries with NaN.
        """
        found = self.index.search(queries, k)
        tokens = self.tokens(found.places)
        return Neighbours(*(x.to(queries.device) for x in (found.distances.float(), tokens, found.places)))

    def values(self) -> Int[Tensor, " N"]:
        """The token that came after each key, in the order of the texts."""
        return self.tokens(torch.arange(len(self), device="cpu"))

    def tokens(self, places: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """The token that came after each key, by the keys' numbers; -1 for -1."""
        flat, found = places.flatten(), torch.full((places.numel(),), -1, device="cpu")
        part = torch.searchsorted(self.starts, flat, right=True) - 1
        for number, text in enumerate(self.texts):
            here = part == number
            found[here] = text.next(flat[here] - self.starts[number])
        return found.view(places.shape)

    def holds(self, pieces: Sequence[Shaped[Tensor, " _"]]) -> int:
        """How many of some pieces stand in its texts, token for token."""
        wanted = [piece.cpu().numpy().astype(numpy.int32).tobytes() for piece in pieces]
        there: set[int] = set()
        for text in self.texts:
            whole = text.lies.tobytes()
            there.update(number for number, piece in enumerate(wanted) if number not in there and piece in whole)
        return len(there)

    def context(self, place: int, before: int = 16, after: int = 8) -> Context:
        """The tokens around a key, all of its own document. ValueError for a key or numbers that there are not."""
        at_least("before", before, 0), at_least("after", after, 0)
        if not 0 <= place < len(self):
            raise ValueError(f"place={place}: this datastore has keys 0 to {len(self) - 1}")
        part = int(torch.searchsorted(self.starts, place, right=True)) - 1
        return self.texts[part].context(place - int(self.starts[part]), before, after)


class Source:
    """The text of a part as it lies on the disk: every token but the last of a document has a key, in order."""

    def __init__(self, part: Part, tokens: numpy.ndarray, begins: numpy.ndarray):
        self.part, self.lies = part, tokens
        self.ends = numpy.append(begins[1:], len(tokens))
        self.begins = begins
        counts = numpy.maximum(self.ends - begins - 1, 0)
        self.firsts = counts.cumsum() - counts  # the number of the first key of each document
        self.keys = int(counts.sum())

    @classmethod
    def open(cls, path: Path, part: Part) -> "Source":
        """The text in a file; DatastoreError where it is not this part's."""
        shapes = {"tokens": ("int32", (part.tokens,)), "begins": ("int64", (part.documents,))}
        there = mapped(path, shapes)
        begins = numpy.array(there["begins"])
        ordered = not len(begins) or (begins[0] == 0 and bool((numpy.diff(begins, append=part.tokens) >= 0).all()))
        source = cls(part, there["tokens"], begins) if ordered else None
        if source is None or source.keys != part.keys:
            raise DatastoreError(f"{path} is not the text of {part.keys:,} keys; build the datastore again")
        if digest(there["tokens"], begins) != part.text:
            raise DatastoreError(f"{path} is damaged: it holds another text than was put there; build it again")
        return source

    def at(self, keys: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """At which tokens keys stand, and in which documents."""
        # of documents without a key only the next one's begin is the same
        document = numpy.searchsorted(self.firsts, keys, side="right") - 1
        return self.begins[document] + keys - self.firsts[document], document

    def next(self, keys: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """What came after the tokens of some keys."""
        return torch.from_numpy(self.lies[self.at(keys.numpy())[0] + 1].astype(numpy.int64))

    def context(self, key: int, before: int, after: int) -> Context:
        """The tokens around a key."""
        (at,), (document,) = self.at(numpy.array([key]))
        begin, end = int(self.begins[document]), int(self.ends[document])
        first, last = max(begin, at + 1 - before), min(end, at + 2 + after)
        seen, (came,), behind = (
            x.tolist() for x in numpy.split(self.lies[first:last], [at + 1 - first, at + 2 - first])
        )
        return Context(seen, came, behind, int(document), self.part.data)


def tokenizer_of(model: Any) -> str:
    """What a datastore says of a model's tokenizer."""
    tokenizer = getattr(model, "tokenizer", None)
    return BYTES if tokenizer is None else tokenizer.sha256
