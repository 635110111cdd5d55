"""Index file for faster searches in a datastore, and its recall (share of nearest keys found)."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kinformer.checkpoint.atomic_files import contents, write_together
from kinformer.core.from_json import from_json
from kinformer.core.named_part import format_part
from kinformer.core.search import Search, VectorIndex, evenly_spaced, search_named
from kinformer.lab.datastore.shards import DatastoreError, Shards
from kinformer.lab.search.support.faiss import FaissIndex, FaissSearch, package
from kinformer.nn.search.exact import ExactSearch

INDEX, ABOUT = "index.faiss", "index.json"
QUERIES, NEAREST = 256, 16  # number of keys that serve as queries to measure recall, and neighbours of each


@dataclass(frozen=True)
class IndexRecord:
    """The description of an index file: its search method, number of keys, hash and recall.

    search: the search, as text.
    keys: number of keys in the index.
    sha256: hash of the index file.
    recall: the share of the 16 truly nearest keys that the index finds, measured with up to 256 keys of the datastore
        as queries. The query itself does not count as a neighbour.
    """

    search: str
    keys: int
    sha256: str
    recall: float


def write_index(folder: Path, keys: Shards, search: Search) -> IndexRecord:
    """Build a FAISS index and write it into the folder of a datastore, with its description.

    folder: the folder of the datastore.
    keys: its keys.
    search: the search.

    Errors: ValueError if the search has no index; OSError if the disk is full.
    """
    index = check_faiss_search(search).index(keys)
    data = index.to_bytes()
    recall = measure_recall(index, keys)
    record = IndexRecord(format_part(search), keys.count, hashlib.sha256(data).hexdigest(), recall)
    write_together({folder / INDEX: data, folder / ABOUT: f"{json.dumps(asdict(record), indent=2)}\n".encode()})
    return record


def check_faiss_search(search: Search) -> FaissSearch:
    """Return the search method if it has an index file and its package is installed; else ValueError.

    search: the search.
    """
    if not isinstance(search, FaissSearch):
        raise ValueError(f"{format_part(search)!r} has no index file; without an index, a search compares every key")
    package(search.name)
    return search


def measure_recall(index: VectorIndex, keys: Shards, nearest: int = NEAREST) -> float:
    """Return the recall of an index: the share of the truly nearest keys that it finds.

    The queries are up to 256 evenly spaced keys of the datastore. A query does not count as its own neighbour.

    index: the index.
    keys: all keys.
    nearest: number of nearest keys for each query.
    """
    places = evenly_spaced(keys.count, QUERIES)
    queries = keys.at(places).float()
    right, ours = (each.search(queries, nearest + 1).places for each in (ExactSearch().index(keys), index))
    neighbours = (right != places[:, None]) & (right >= 0)
    hits = (right[:, :, None] == ours[:, None]).any(2) & neighbours
    return float(hits.sum()) / max(int(neighbours.sum()), 1)


def read_index_record(folder: Path) -> IndexRecord | None:
    """Return the description of the index beside the keys; None if there is no index.

    folder: the folder of the datastore.

    Errors: DatastoreError if it is unreadable.
    """
    path = folder / ABOUT
    if not path.is_file():
        return None
    try:
        record = from_json(contents(path))
        form = {"search": str, "keys": int, "sha256": str, "recall": float}
        if not isinstance(record, dict) or any(type(record.get(name)) is not kind for name, kind in form.items()):
            raise ValueError("it does not describe an index")
    except OSError as error:
        raise DatastoreError(str(error)) from error
    except ValueError as error:
        raise DatastoreError(f"{path} is damaged: {error}; remove it, or build the index again") from error
    return IndexRecord(**{name: record[name] for name in form})


def open_index(folder: Path, record: IndexRecord, keys: Shards) -> VectorIndex:
    """Open the index of a datastore; DatastoreError if it is truncated or belongs to other keys.

    folder: the folder of the datastore.
    record: the description of the index.
    keys: all keys.
    """
    path, advice = folder / INDEX, "build it again with kinformer datastore index"
    try:
        data = contents(path, f"; {advice}")
    except OSError as error:
        raise DatastoreError(str(error)) from error
    if hashlib.sha256(data).hexdigest() != record.sha256:
        raise DatastoreError(f"{path} is truncated or damaged; {advice}")
    search = search_named(record.search)
    if not isinstance(search, FaissSearch) or record.keys != keys.count:
        raise DatastoreError(f"wrong index {path}: got {record.keys:,} keys, expected {keys.count:,}; {advice}")
    try:
        return FaissIndex.from_bytes(search, keys, data)
    except ValueError as error:
        raise DatastoreError(f"{path} cannot be used: {error}; {advice}") from error


def remove_index(folder: Path) -> None:
    """Remove the index of a datastore, because it lacks the keys that were just appended.

    folder: the folder of the datastore.
    """
    for name in (ABOUT, INDEX):
        (folder / name).unlink(missing_ok=True)
