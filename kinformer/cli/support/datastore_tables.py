"""What the commands of a datastore print: what it holds, and the neighbours of a prompt."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kinformer.cli.errors import print_warnings
from kinformer.cli.support.load_model import load_model
from kinformer.core.eval_mode import evaluating
from kinformer.core.search import search_named
from kinformer.decoding.byte_tokenizer import tokenizer_of_model, warn_of_loss
from kinformer.lab.data.batches import device_of
from kinformer.lab.datastore.datastore import Datastore
from kinformer.lab.datastore.index_file import check_faiss_search, read_index_record, write_index
from kinformer.lab.errors import FAILED, UserError, from_user
from kinformer.lab.search.support.faiss import FaissSearch
from kinformer.models.support.hidden_taps import Tap
from kinformer.nn.search.exact import ExactSearch

BEFORE, AFTER = 24, 12  # tokens that are shown around a key


def open_datastore(store: Path, exact: bool = False) -> Datastore:
    """The datastore in a folder, searched exactly or by the index that it keeps."""
    with from_user(ValueError, OSError):
        return Datastore.open(store, ExactSearch() if exact else None)


def find_neighbours(
    store: Path, prompt: str, k: int, exact: bool, model: Path | None, device: str | None, member: str | None
) -> list[dict[str, Any]]:
    """The keys that are nearest to what the model of a datastore makes of a prompt, with the texts around them.

    model: the folder of the model, where it is no longer where it was.
    """
    opened = open_datastore(store, exact)
    home = model or opened.home(store)
    if home is None:
        where = f"is no longer in {opened.manifest.home}" if opened.manifest.home else "was in no folder"
        raise UserError(f"the model of {store} {where}; say where it is with --model DIR")
    reader = load_model(home, member, device)
    with from_user(ValueError):
        opened.check(reader)
    spelled, text = tokenizer_of_model(reader), prompt.encode(errors="surrogateescape")
    tokens = spelled.encode(text)[-opened.manifest.parts[0].length :]
    if not tokens:
        raise UserError("--prompt is empty; give a text")
    with print_warnings():
        warn_of_loss(reader, [text])
    with from_user(ValueError, LookupError), evaluating(reader):
        states = Tap(reader, opened.tap)(torch.tensor([tokens], device=device_of(reader))).states
        neighbours = opened.search(states[0, -1:], k)
    rows = _neighbour_rows(opened, spelled, *(x[0].tolist() for x in neighbours))
    if not rows:
        raise UserError(f"no key of {store} is near anything: they are spoiled; build it again")
    return rows


def make_index(store: Datastore, folder: Path, name: str) -> None:
    """Make an index of a datastore; UserError for one that there is not."""
    try:
        with from_user(ValueError):
            write_index(folder, store.keys, index_named(name))
    except OSError as error:
        raise UserError(str(error), FAILED) from error


def index_named(name: str) -> FaissSearch:
    """The search of an index by its name; UserError for one that there is not, or that keeps no index."""
    with from_user(ValueError):
        return check_faiss_search(search_named(name))


def describe_datastore(store: Datastore, folder: Path) -> dict[str, Any]:
    """What is said of a datastore, for programs."""
    manifest = asdict(store.manifest)
    parts = [{**part, "keys": sum(part["shards"]), "shards": len(part["shards"])} for part in manifest.pop("parts")]
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    index_record = read_index_record(folder)
    index = None if index_record is None else asdict(index_record)
    return {"folder": str(folder), "keys": len(store), "bytes": size, **manifest, "index": index, "parts": parts}


def print_datastore(store: Datastore, folder: Path) -> None:
    description = describe_datastore(store, folder)
    print(
        f"{folder}: {description['keys']:,} keys of {description['width']} numbers in {description['dtype']}, "
        f"{description['bytes']:,} bytes; the state {description['tap']} at each token, "
        f"of the model in {description['home'] or '?'}"
    )
    if (index := description["index"]) is not None:
        print(f"  searched by {index['search']}, which finds {index['recall']:.1%} of the nearest 16")
    for part in description["parts"]:
        read = (
            f"windows of {part['length']} tokens, {part['stride']} apart"
            if part["stride"]
            else "read from begin to end, a state carried"
        )
        of = f"{part['documents']:,} documents" if part["documents"] > 1 else "one text"
        print(f"  {part['data']}: {part['keys']:,} keys, {of}, {read}")


def _neighbour_rows(
    store: Datastore, spelled: Any, distances: Sequence[float], tokens: Sequence[int], places: Sequence[int]
) -> list[dict[str, Any]]:
    """What is told of each neighbour."""
    rows = []
    for distance, token, place in zip(distances, tokens, places, strict=True):
        if place < 0:
            continue
        context = store.context(place, BEFORE, AFTER)
        before, after = (spelled.decode(x).decode(errors="replace") for x in (context.before, context.after))
        continuation = {"token": token, "next": spelled.decode([token]).decode(errors="replace")}
        where = {"data": context.data, "document": context.document, "place": place}
        rows.append({"distance": distance, **continuation, "before": before, "after": after, **where})
    return rows


def print_neighbours(rows: Sequence[dict[str, Any]]) -> None:
    """A neighbour a line, what came next marked in its text; and where that is, if not all are in one."""
    print("  distance  a text like the prompt, [what came next], and how it went on")
    same_document = len({(row["data"], row["document"]) for row in rows}) == 1
    for row in rows:
        before, continuation, after = (repr(row[name])[1:-1] for name in ("before", "next", "after"))
        where = "" if same_document else f"  ({row['data']}, document {row['document']})"
        print(f"{row['distance']:10.4f}  {before}[{continuation}]{after}{where}")
    if same_document:
        print(f"all in document {rows[0]['document']} of {rows[0]['data']}")
