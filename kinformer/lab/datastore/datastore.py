"""Datastore: a model's hidden states at the tokens of a text, each with the token that followed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from kinformer.bridge.load import load
from kinformer.core.checks import check_at_least
from kinformer.core.eval_mode import evaluating
from kinformer.core.missing_path import refuse_long_paths
from kinformer.core.neighbours import Neighbours, Store
from kinformer.core.search import Search, VectorIndex
from kinformer.decoding.saved_state import fingerprint
from kinformer.lab.data.support.split_tokens import SplitTokens as Text
from kinformer.lab.datastore.build_datastore import SHARD, Dtype, build, plan_build
from kinformer.lab.datastore.index_file import open_index, read_index_record
from kinformer.lab.datastore.manifest import BUILDING, MANIFEST, DatastorePart, Manifest, keys_file, text_file
from kinformer.lab.datastore.shards import DatastoreError, Shards, digest, map_tensors
from kinformer.models.support.hidden_taps import LAST_FFN_INPUT, Tap
from kinformer.nn.search.exact import ExactSearch

__all__ = ["Datastore", "DatastoreError", "KeyContext"]
BYTES = "bytes"  # takes the place of a tokenizer's hash
LENGTH = 128  # tokens of a window, if the model has no training length


class KeyContext(NamedTuple):
    """The text around a key of a datastore (a model's hidden state at one token).

    before: tokens of its document up to the token of the key.
    next: the next token.
    after: the tokens after that.
    document: number of the document within its part of the datastore.
    data: description of the text.
    """

    before: list[int]
    next: int
    after: list[int]
    document: int
    data: str


class KeyModel(NamedTuple):
    """A datastore, the model that made its keys, and the name of the hidden state that is the key.

    store: the datastore.
    model: the model.
    tap: name of the hidden state, as `Tap` takes it.
    """

    store: Store
    model: Any
    tap: str


class Datastore(Store):
    """Pairs of a key (a language model's hidden state at a token) and the token that followed, on disk.

    Choose it to let a model look up the tokens that followed similar contexts, in a text of any size and without
    training. Keys stay on the disk, and a search holds one block of them in memory. `Datastore.build` and `kinformer
    datastore build` write it, in files (shards) that are complete or absent. It belongs to the weights and tokenizer of
    one model.

    Use `Datastore.open(path)`, then `search(queries, k)`. The queries are hidden states of the model that
    `models.support.hidden_taps.Tap` reads at `store.tap`.

    manifest: the datastore's description.
    texts: the text of each part; each build or append adds a part.
    keys: the keys of all parts, in order.
    index: the index for searches; `ExactSearch().index(keys)` unless given.

    Errors: DatastoreError, a ValueError of one line, for a folder without a datastore, an unfinished or truncated
    datastore, a damaged text, and, from `check`, for another model. The contents of the keys are not verified, because
    that would take as long as a search.

    Source: Khandelwal et al., 2019, arXiv:1911.00172, section 2.
    """

    def __init__(
        self, manifest: Manifest, texts: Sequence["DatastoreText"], keys: Shards, index: VectorIndex | None = None
    ):
        self.manifest, self.texts, self.keys = manifest, tuple(texts), keys
        self.starts = torch.tensor([0, *(text.keys for text in texts)], device="cpu").cumsum(0)
        self.index = ExactSearch().index(keys) if index is None else index

    @classmethod
    def open(cls, path: str | Path, search: Search | None = None) -> "Datastore":
        """Open the datastore in a folder; DatastoreError if there is none or it is incomplete.

        path: the folder.
        search: method of searching its keys; by default with the index in the folder, or else exactly.
        """
        folder = Path(path)
        if not (folder / MANIFEST).is_file():
            begun = (
                "its build is unfinished: continue it with --resume" if (folder / BUILDING).is_file() else "build one"
            )
            raise DatastoreError(f"there is no datastore in {folder}; {begun} (kinformer datastore build)")
        manifest = Manifest.load(folder / MANIFEST)
        maps, texts = [], []
        for number, part in enumerate(manifest.parts):
            texts.append(DatastoreText.open(folder / text_file(number), part))
            for shard, count in enumerate(part.shards):
                expected = {"keys": (manifest.dtype, (count, manifest.width))}
                maps.append(map_tensors(folder / keys_file(number, shard), expected)["keys"])
        keys, record = Shards(maps, manifest.width), read_index_record(folder) if search is None else None
        if record is not None:
            return cls(manifest, texts, keys, open_index(folder, record, keys))
        return cls(manifest, texts, keys, None if search is None else search.index(keys))

    @classmethod
    @refuse_long_paths()
    def with_model(cls, path: Path, frozen: str | None = None) -> KeyModel:
        """Open a datastore together with the model that made its keys.

        path: the folder of the datastore.
        frozen: the folder of that model; by default the folder that the datastore names.

        Errors: DatastoreError, in one line, if the datastore or the model is missing or unreadable.
        """
        if not path.is_dir():
            raise DatastoreError(
                f"there is no datastore in {path.absolute()}, where this member expects it; put it there, or give its "
                "folder with --datastore"
            )
        store = cls.open(path)
        home = Path(frozen) if frozen else store.home(path)
        if home is None or not home.is_dir():
            was = (
                f"is not in {store.manifest.home}, nor next to the keys"
                if store.manifest.home
                else "was not in a folder"
            )
            where = f"is not in {frozen}" if frozen else was
            raise DatastoreError(f"the model that made the keys of {path} {where}; give its folder, frozen=FOLDER")
        try:
            model = load(home)
        except FileNotFoundError as error:
            message = f"cannot read the model that made the keys of {path}: {error}; give its folder, frozen=FOLDER"
            raise DatastoreError(message) from error
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
        on_progress: Callable[[int], None] = lambda keys: None,
    ) -> "Datastore":
        """Compute the keys of a text with a model, write them into a folder, and open the datastore.

        A killed build loses at most one shard (a file of keys). With `resume` the build continues after the last
        complete shard. Its files are then bit for bit equal to the files of an uninterrupted build.

        folder: the folder.
        model: a language model.
        text: tokens, or a text with documents that are read separately.
        data: a description of the text, shown with search results.
        home: the folder of the model, recorded so that it can be found again.
        tap: name of the hidden state of the model that is the key (`models.support.hidden_taps.Tap`).
        dtype: float16, or float32 in twice the space.
        length: tokens of a window; the model's training length unless given, and at most its learned positions.
        stride: tokens from one window to the next; half a window unless given, so that a key has at least length -
            stride tokens before it. A model that is trained on lanes (parallel pieces of a text) reads lanes unless
            `stride` is given. 0 reads lanes.
        shard: the least bytes of keys in a file.
        append: add the text to the datastore in the folder.
        resume: continue an unfinished build.
        on_progress: called with the number of finished keys.

        Errors: DatastoreError for a folder with other files, ValueError for a text without two tokens in a row and for
        keys that are not finite, OSError if the disk is full.
        """
        with evaluating(model):
            reader = Tap(model, tap)
        if length is None:
            length = model.trained_length or LENGTH
        length = length if model.window is None else min(length, model.window)
        stride = (0 if model.lanes else max(length // 2, 1)) if stride is None else stride
        if not stride and not model.lanes:
            raise ValueError(f"stride={stride} reads lanes, and this model is not trained on lanes; give 1 to {length}")
        plan = plan_build(
            reader,
            Text.from_tokens(text),
            data,
            tokenizer_of(model),
            home,
            dtype=dtype,
            length=length,
            stride=stride,
            shard=shard,
        )
        build(plan, Path(folder), append=append, resume=resume, on_progress=on_progress)
        return cls.open(folder)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Datastore":
        """Return the datastore itself: a copy of a model reads the same files."""
        return self

    def __len__(self) -> int:
        return self.keys.count

    @property
    def width(self) -> int:
        """The number of coordinates of a key."""
        return self.manifest.width

    @property
    def tap(self) -> str:
        """The name of the model's hidden state that is the key, as `Tap` takes it."""
        return self.manifest.tap

    def home(self, folder: Path) -> Path | None:
        """Return the folder of the model that made the keys; None if it does not exist.

        It is the folder that the manifest names, or else a folder of the same name next to the datastore. `check` tests
        whether it still holds the same model.

        folder: the folder of the datastore.
        """
        was = Path(self.manifest.home)
        places = (was, folder.resolve().parent / was.name) if self.manifest.home else ()
        return next((place for place in places if place.is_dir()), None)

    def check(self, model: Any) -> None:
        """Raise DatastoreError unless this model made the keys, by its weights, keywords and tokenizer.

        model: the model.
        """
        if self.manifest.tokenizer != tokenizer_of(model):
            raise DatastoreError("the datastore was built with another tokenizer; build one with this model")
        if self.manifest.model != fingerprint(model):
            raise DatastoreError(
                "the datastore was built with another model: its weights or keywords differ; build one with this model"
            )

    def search(self, queries: Float[Tensor, "N D"], k: int) -> Neighbours:
        """Return the k nearest keys of each query, in order, and the tokens that followed them.

        The exact search returns the first of equally near keys; an approximate index may return others. The search runs
        on the CPU; its result is on the device of the queries.

        queries: hidden states of the model, [N, D].
        k: number of keys for each query.

        Errors: ValueError for k below 1, another width, and queries with NaN, infinity or a length of 2^60 or more.
        """
        distances, places = self.index.search(queries, k)
        return Neighbours(*(x.to(queries.device) for x in (distances.float(), self.tokens(places), places)))

    def values(self) -> Int[Tensor, " N"]:
        """Return the token that followed each key, in the order of the texts."""
        return self.tokens(torch.arange(len(self), device="cpu"))

    def tokens(self, places: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Return the token that followed each key; -1 for the number -1.

        Keys are numbered from 0 in the order of the texts.

        places: the numbers of the keys.
        """
        flat, tokens = places.flatten(), torch.full((places.numel(),), -1, device="cpu")
        part = torch.searchsorted(self.starts, flat, right=True) - 1
        for number, text in enumerate(self.texts):
            at = part == number
            tokens[at] = text.next_tokens(flat[at] - self.starts[number])
        return tokens.view(places.shape)

    def count_occurring(self, pieces: Sequence[Shaped[Tensor, " _"]]) -> int:
        """Return how many of the given token sequences occur in the texts of the datastore.

        pieces: the sequences of tokens.
        """
        data = [piece.cpu().numpy().astype(numpy.int32).tobytes() for piece in pieces]
        occurs = [False] * len(data)
        for text in self.texts:
            whole = text.tokens.tobytes()
            occurs = [is_known or piece in whole for is_known, piece in zip(occurs, data, strict=True)]
        return sum(occurs)

    def context(self, place: int, before: int = 16, after: int = 8) -> KeyContext:
        """Return the tokens of its document around a key.

        place: the number of the key.
        before, after: numbers of tokens on each side.

        Errors: ValueError if there is no such key, or if a number is negative.
        """
        check_at_least("before", before, 0), check_at_least("after", after, 0)
        if not 0 <= place < len(self):
            raise ValueError(f"wrong place: got {place}, expected the number of a key, 0 to {len(self) - 1}")
        part = int(torch.searchsorted(self.starts, place, right=True)) - 1
        return self.texts[part].context(place - int(self.starts[part]), before, after)


class DatastoreText:
    """The text of one part of a datastore (one build or append), mapped from disk.

    Every token except the last of a document has a key; keys have the order of the tokens.

    part: its entry in the manifest.
    tokens: the tokens.
    begins: first token of each document.
    """

    def __init__(self, part: DatastorePart, tokens: numpy.ndarray, begins: numpy.ndarray):
        self.part, self.tokens = part, tokens
        self.ends = numpy.append(begins[1:], len(tokens))
        self.begins = begins
        counts = numpy.maximum(self.ends - begins - 1, 0)
        self.firsts = counts.cumsum() - counts  # the number of the first key of each document
        self.keys = int(counts.sum())

    @classmethod
    def open(cls, path: Path, part: DatastorePart) -> "DatastoreText":
        """Open the text in a file; DatastoreError if it does not belong to this part.

        path: the file.
        part: the entry of the part in the manifest.
        """
        shapes = {"tokens": ("int32", (part.tokens,)), "begins": ("int64", (part.documents,))}
        maps = map_tensors(path, shapes)
        begins = numpy.array(maps["begins"])
        ordered = not len(begins) or (begins[0] == 0 and bool((numpy.diff(begins, append=part.tokens) >= 0).all()))
        text = cls(part, maps["tokens"], begins) if ordered else None
        if text is None or text.keys != part.keys:
            raise DatastoreError(f"{path} does not hold the text of {part.keys:,} keys; build the datastore again")
        if digest(maps["tokens"], begins) != part.text:
            raise DatastoreError(f"{path} is damaged: the hash of its text is wrong; build the datastore again")
        return text

    def locate(self, keys: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the index of the token, and the number of the document, of each key.

        keys: the numbers of the keys within the part.
        """
        # a document without keys shares its first key with the next document
        document = numpy.searchsorted(self.firsts, keys, side="right") - 1
        return self.begins[document] + keys - self.firsts[document], document

    def next_tokens(self, keys: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return the token that followed each key.

        keys: the numbers of the keys within the part.
        """
        return torch.from_numpy(self.tokens[self.locate(keys.numpy())[0] + 1].astype(numpy.int64))

    def context(self, key: int, before: int, after: int) -> KeyContext:
        """Return the tokens of its document around a key.

        key: the number of the key within the part.
        before, after: numbers of tokens on each side.
        """
        (at,), (document,) = self.locate(numpy.array([key]))
        begin, end = int(self.begins[document]), int(self.ends[document])
        first, last = max(begin, at + 1 - before), min(end, at + 2 + after)
        tokens = self.tokens[first:last].tolist()
        next_at = at + 1 - first
        return KeyContext(tokens[:next_at], tokens[next_at], tokens[next_at + 1 :], int(document), self.part.data)


def tokenizer_of(model: Any) -> str:
    """Return the hash of a model's tokenizer, or "bytes".

    model: the model.
    """
    tokenizer = getattr(model, "tokenizer", None)
    return BYTES if tokenizer is None else tokenizer.sha256
