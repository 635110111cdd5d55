"""Manifest: the JSON description of a datastore: its model, its texts and the files of its keys."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import write
from kinformer.core.from_json import from_json
from kinformer.core.missing_path import missing_path
from kinformer.lab.datastore.shards import DatastoreError

EDITION = 1  # version of the format of a datastore
MANIFEST, BUILDING = "store.json", "building.json"
FORM = {"model": str, "tokenizer": str, "tap": str, "dtype": str, "width": int, "home": str}
PART = {"data": str, "tokens": int, "documents": int, "length": int, "stride": int, "text": str, "shards": list}


@dataclass(frozen=True)
class DatastorePart:
    """Description of one part of a datastore: a text that one build or append has added.

    data: a description of the text for readers.
    tokens, documents: number of tokens, and number of documents.
    length, stride: length and stride of the windows in which the model read the text, in tokens. A stride of 0 means
        lanes (long parallel pieces).
    text: a hash of the tokens and of the places where documents begin.
    shards: the number of keys in each shard (file of keys).
    """

    data: str
    tokens: int
    documents: int
    length: int
    stride: int
    text: str
    shards: tuple[int, ...]

    @property
    def keys(self) -> int:
        """The number of keys."""
        return sum(self.shards)


@dataclass(frozen=True)
class Manifest:
    """Description of a datastore: the properties that all its keys share, and its parts.

    model: the fingerprint of the model.
    tokenizer: the hash of its tokenizer, or "bytes".
    tap: name of the hidden state that is the key.
    dtype, width: dtype and width of a key.
    home: the folder of the model, or "".
    parts: the description of each part, in order.
    """

    model: str
    tokenizer: str
    tap: str
    dtype: str
    width: int
    home: str = ""
    parts: tuple[DatastorePart, ...] = ()

    def save(self, path: Path) -> None:
        """Write the manifest into a file in one step.

        path: the file.
        """
        write(path, f"{json.dumps({'edition': EDITION, **dataclasses.asdict(self)}, indent=2)}\n".encode())

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """Read a manifest from a file; DatastoreError if the file is missing, unreadable or not a manifest.

        path: the file.
        """
        try:
            record = from_json(path.read_bytes())
        except FileNotFoundError as error:
            raise DatastoreError(missing_path(path, "`kinformer datastore build` makes a datastore")) from error
        except OSError as error:
            raise DatastoreError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise DatastoreError(f"{path} is truncated or not a manifest of a datastore: {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get("edition"), int):
            raise DatastoreError(f"{path} is not a manifest of a datastore: kinformer did not write it")
        if record["edition"] != EDITION:
            raise DatastoreError(
                f"{path} has another format: got edition {record['edition']}, expected edition {EDITION}. Build the "
                "datastore again"
            )
        if not _has_fields(record, FORM) or not isinstance(record.get("parts"), list) or not record["parts"]:
            raise DatastoreError(
                f"{path} is damaged: expected the entries {', '.join((*FORM, 'parts'))}; build it again"
            )
        parts = [_part(part, path) for part in record["parts"]]
        if record["dtype"] not in ("float16", "float32") or record["width"] < 1:
            raise DatastoreError(f"{path} is damaged: its dtype or width is impossible; build the datastore again")
        return cls(**{name: record[name] for name in FORM}, parts=tuple(parts))


def _part(record: Any, path: Path) -> DatastorePart:
    """Return a part from its JSON; DatastoreError if it lacks entries."""
    shards = record.get("shards") if isinstance(record, dict) else None
    if not _has_fields(record, PART) or not shards or not all(type(count) is int and count > 0 for count in shards):
        raise DatastoreError(f"{path} is damaged: a part lacks entries, expected {', '.join(PART)}; build it again")
    return DatastorePart(**{**{name: record[name] for name in PART}, "shards": tuple(shards)})


def _has_fields(record: Any, form: dict[str, type]) -> bool:
    return isinstance(record, dict) and all(type(record.get(name)) is kind for name, kind in form.items())


def text_file(part: int) -> str:
    """Return the name of the file with the tokens of a part of a datastore.

    part: number of the part.
    """
    return f"{part:03}.text.safetensors"


def keys_file(part: int, shard: int) -> str:
    """Return the name of a file with keys (a shard) of a datastore.

    part: number of the part.
    shard: number of the shard in the part.
    """
    return f"{part:03}.{shard:05}.keys.safetensors"
