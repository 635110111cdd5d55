"""Indexing: an index beside the keys of a datastore, and how much of what is nearest it finds."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kinformer.checkpoint.files import contents, write_together
from kinformer.core.from_json import from_json
from kinformer.core.search import Search, VectorIndex, format_search, search_named, spread
from kinformer.lab.datastore.shards import DatastoreError, Shards
from kinformer.lab.search.support.faiss import FaissIndex, FaissSearch, package
from kinformer.nn.search.exact import ExactSearch

INDEX, ABOUT = "index.faiss", "index.json"
ASKED, NEAREST = 256, 16  # keys whose neighbours are looked for, and how many of each


@dataclass(frozen=True)
class Kept:
    """What is said of an index: the search, the keys that it is of, its file's hash, and what part of the nearest 16.

    recall: of the nearest keys of keys drawn from the store, themselves left out, the share that it finds.
    """

    search: str
    keys: int
    sha256: str
    recall: float


def keep(folder: Path, keys: Shards, search: Search) -> Kept:
    """Make an index and put it beside the keys. ValueError for a search that keeps none, OSError for a full disk."""
    index = kept_by(search).index(keys)
    data = index.written()
    kept = Kept(format_search(search), keys.count, hashlib.sha256(data).hexdigest(), recall(index, keys))
    write_together({folder / INDEX: data, folder / ABOUT: f"{json.dumps(asdict(kept), indent=2)}\n".encode()})
    return kept


def kept_by(search: Search) -> FaissSearch:
    """The search, where it keeps an index and its package is there; ValueError otherwise."""
    if not isinstance(search, FaissSearch):
        raise ValueError(f"{format_search(search)!r} needs no index: leave it out, and every key is looked at")
    package(search.name)
    return search


def recall(index: VectorIndex, keys: Shards, nearest: int = NEAREST) -> float:
    """Of so many nearest of some keys, themselves left out, the share that an index finds."""
    at = spread(keys.count, ASKED)
    queries = keys.at(at).float()
    right, ours = (one.search(queries, nearest + 1).places for one in (ExactSearch().index(keys), index))
    wanted = (right != at[:, None]) & (right >= 0)
    found = (right[:, :, None] == ours[:, None]).any(2) & wanted
    return float(found.sum()) / max(int(wanted.sum()), 1)


def there(folder: Path) -> Kept | None:
    """What is said of the index beside the keys; None where there is none. DatastoreError where it cannot be read."""
    path = folder / ABOUT
    if not path.is_file():
        return None
    try:
        told = from_json(contents(path))
        form = {"search": str, "keys": int, "sha256": str, "recall": float}
        if not isinstance(told, dict) or any(type(told.get(name)) is not kind for name, kind in form.items()):
            raise ValueError("it says nothing of an index")
    except OSError as error:
        raise DatastoreError(str(error)) from error
    except ValueError as error:
        raise DatastoreError(f"{path} is damaged: {error}; remove it, or make the index again") from error
    return Kept(**{name: told[name] for name in form})


def opened(folder: Path, kept: Kept, keys: Shards) -> VectorIndex:
    """The index beside the keys; DatastoreError where it is truncated, or of other keys."""
    path, advice = folder / INDEX, "make it again: kinformer datastore index"
    try:
        data = contents(path, f"; {advice}")
    except OSError as error:
        raise DatastoreError(str(error)) from error
    if hashlib.sha256(data).hexdigest() != kept.sha256:
        raise DatastoreError(f"{path} is truncated or damaged; {advice}")
    search = search_named(kept.search)
    if not isinstance(search, FaissSearch) or kept.keys != keys.count:
        raise DatastoreError(f"{path} is of {kept.keys:,} keys, and {keys.count:,} are there; {advice}")
    try:
        return FaissIndex.read(search, keys, data)
    except ValueError as error:
        raise DatastoreError(f"{path} cannot be used: {error}; {advice}") from error


def forget(folder: Path) -> None:
    """Take away the index, which new keys are not in."""
    for name in (ABOUT, INDEX):
        (folder / name).unlink(missing_ok=True)
