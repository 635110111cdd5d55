"""Manifest: what a datastore says of itself, in JSON: whose keys it holds, of what texts, in which files."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinformer.checkpoint.files import write
from kinformer.core.absent import absent
from kinformer.core.from_json import from_json
from kinformer.lab.datastore.shards import DatastoreError

EDITION = 1  # of the form of a datastore
MANIFEST, BUILDING = "store.json", "building.json"
FORM = {"model": str, "tokenizer": str, "tap": str, "dtype": str, "width": int, "home": str}
PART = {"data": str, "tokens": int, "documents": int, "length": int, "stride": int, "text": str, "shards": list}


@dataclass(frozen=True)
class Part:
    """What one build or append brought: a text, how it was read, and how many keys each of its shards has.

    data: what it was made of, in words. tokens, documents: how many. length, stride: of the windows that were read;
    stride 0 for lanes. text: a hash of its tokens and of where its documents begin.
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
        """How many keys it has."""
        return sum(self.shards)


@dataclass(frozen=True)
class Manifest:
    """What all keys of a datastore share, and its parts.

    model: the fingerprint of the model whose states they are. tokenizer: the hash of its tokenizer, or "bytes". tap:
    which state. dtype, width: of a key. home: the folder that the model was in, "" where it was in none.
    """

    model: str
    tokenizer: str
    tap: str
    dtype: str
    width: int
    home: str = ""
    parts: tuple[Part, ...] = ()

    def save(self, path: Path) -> None:
        """Write it into a file in one step."""
        write(path, f"{json.dumps({'edition': EDITION, **dataclasses.asdict(self)}, indent=2)}\n".encode())

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """What a file says; DatastoreError for a file that says no such thing."""
        try:
            told = from_json(path.read_bytes())
        except FileNotFoundError as error:
            raise DatastoreError(absent(path, "`kinformer datastore build` makes a datastore")) from error
        except OSError as error:
            raise DatastoreError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise DatastoreError(f"{path} is truncated or no manifest of a datastore: {error}") from error
        if not isinstance(told, dict) or not isinstance(told.get("edition"), int):
            raise DatastoreError(f"{path} is no manifest of a datastore: kinformer did not write it")
        if told["edition"] != EDITION:
            raise DatastoreError(
                f"{path} is of edition {told['edition']} of the form of a datastore, and this version reads edition "
                f"{EDITION}; build it again"
            )
        if not _like(told, FORM) or not isinstance(told.get("parts"), list) or not told["parts"]:
            raise DatastoreError(f"{path} is damaged: it does not say {', '.join((*FORM, 'parts'))}; build it again")
        parts = [_part(one, path) for one in told["parts"]]
        if told["dtype"] not in ("float16", "float32") or told["width"] < 1:
            raise DatastoreError(f"{path} is damaged: it names no keys that there can be; build it again")
        return cls(**{name: told[name] for name in FORM}, parts=tuple(parts))


def _part(told: Any, path: Path) -> Part:
    shards = told.get("shards") if isinstance(told, dict) else None
    if not _like(told, PART) or not shards or not all(type(one) is int and one > 0 for one in shards):
        raise DatastoreError(f"{path} is damaged: a part of it does not say {', '.join(PART)}; build it again")
    return Part(**{**{name: told[name] for name in PART}, "shards": tuple(shards)})


def _like(told: Any, form: dict[str, type]) -> bool:
    return isinstance(told, dict) and all(type(told.get(name)) is kind for name, kind in form.items())


def text_file(part: int) -> str:
    """The file of a part's tokens."""
    return f"{part:03}.text.safetensors"


def keys_file(part: int, shard: int) -> str:
    """The file of the keys of a shard of a part."""
    return f"{part:03}.{shard:05}.keys.safetensors"
