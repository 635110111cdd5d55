"""Datastores for `kinformer datastore`: opening, indexing, description, and the keys near a prompt."""

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

BEFORE, AFTER = 24, 12  # tokens of context to print before and after a key


def open_datastore(store: Path, exact: bool = False) -> Datastore:
    """Open a datastore.

    store: the folder.
    exact: compare with every key in a search; otherwise the index of the datastore is used, if it has one.

    Errors: UserError if the folder holds no valid datastore.
    """
    with from_user(ValueError, OSError):
        return Datastore.open(store, ExactSearch() if exact else None)


def find_neighbours(
    store: Path, prompt: str, k: int, exact: bool, reader: tuple[Path | None, str | None, str | None, str]
) -> list[dict[str, Any]]:
    """Find the keys of a datastore that are nearest to a prompt, with the texts around them.

    store: the folder of the datastore.
    prompt: the text; the model's hidden state at its last token is compared with the keys.
    k: number of nearest keys to find.
    exact: compare with every key, instead of a search with the index.
    reader: the model: its folder, or None for the folder that is recorded in the datastore; and the user's own member,
        the device and the precision, as for `load_model`.

    Returns a dictionary for each key that was found, the nearest first. Errors: UserError if the model cannot be found
    or is not the datastore's model, if the prompt is empty, or if no key is found.
    """
    opened = open_datastore(store, exact)
    folder, member, device, precision = reader
    home = folder or opened.home(store)
    if home is None:
        where = (
            f"it is no longer in {opened.manifest.home}" if opened.manifest.home else "the datastore records no folder"
        )
        raise UserError(f"cannot find the model of {store}: {where}. Give its folder with --model DIR")
    model = load_model(home, member, device, precision=precision)
    with from_user(ValueError):
        opened.check(model)
    spelled, text = tokenizer_of_model(model), prompt.encode(errors="surrogateescape")
    tokens = spelled.encode(text)[-opened.manifest.parts[0].length :]
    if not tokens:
        raise UserError("--prompt is empty: expected at least one token. Give --prompt TEXT")
    with print_warnings():
        warn_of_loss(model, [text])
    with from_user(ValueError, LookupError), evaluating(model):
        states = Tap(model, opened.tap)(torch.tensor([tokens], device=device_of(model))).states
        neighbours = opened.search(states[0, -1:], k)
    rows = _neighbour_rows(opened, spelled, *(x[0].tolist() for x in neighbours))
    if not rows:
        raise UserError(f"the search in {store} found no key: its keys are not finite. Build the datastore again")
    return rows


def make_index(store: Datastore, folder: Path, name: str) -> None:
    """Build the search index of a datastore, and write it into the folder.

    store: the datastore with the keys.
    folder: the folder of the datastore.
    name: the kind of index, such as "hnsw" or "ivf:lists=64,probes=4".

    Errors: UserError for an unknown kind, a search that needs no index, and a file that cannot be written.
    """
    try:
        with from_user(ValueError):
            write_index(folder, store.keys, index_named(name))
    except OSError as error:
        raise UserError(str(error), FAILED) from error


def index_named(name: str) -> FaissSearch:
    """Return the search of a datastore that uses the named kind of index.

    name: the kind of index, such as "hnsw".

    Errors: UserError for an unknown kind, and for a search that needs no index.
    """
    with from_user(ValueError):
        return check_faiss_search(search_named(name))


def describe_datastore(store: Datastore, folder: Path) -> dict[str, Any]:
    """Return the description of a datastore as a dictionary for JSON.

    store: the datastore.
    folder: its folder.
    """
    manifest = asdict(store.manifest)
    parts = [{**part, "keys": sum(part["shards"]), "shards": len(part["shards"])} for part in manifest.pop("parts")]
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    index_record = read_index_record(folder)
    index = None if index_record is None else asdict(index_record)
    return {"folder": str(folder), "keys": len(store), "bytes": size, **manifest, "index": index, "parts": parts}


def print_datastore(store: Datastore, folder: Path) -> None:
    """Print the description of a datastore for people.

    store: the datastore.
    folder: its folder.
    """
    description = describe_datastore(store, folder)
    print(
        f"{folder}: {description['keys']:,} keys of width {description['width']} in {description['dtype']}, "
        f"{description['bytes']:,} bytes; each key is the hidden state {description['tap']} of a token, "
        f"from the model in {description['home'] or 'an unknown folder'}"
    )
    if (index := description["index"]) is not None:
        print(f"  index: {index['search']}, which finds {index['recall']:.1%} of the 16 nearest keys")
    for part in description["parts"]:
        read = (
            f"in windows of {part['length']} tokens with stride {part['stride']}"
            if part["stride"]
            else "from beginning to end with a carried state"
        )
        of = f"{part['documents']:,} documents" if part["documents"] > 1 else "one text"
        print(f"  {part['data']}: {part['keys']:,} keys from {of}, read {read}")


def _neighbour_rows(
    store: Datastore, spelled: Any, distances: Sequence[float], tokens: Sequence[int], places: Sequence[int]
) -> list[dict[str, Any]]:
    """A dictionary for each neighbour that the search found: its distance, token, context and place."""
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
    """Print one key of a datastore per line, with the token that followed it in brackets.

    rows: the keys as `find_neighbours` returns them. If they come from several documents, each line ends with the
        document of its key.
    """
    print("  distance  context before [next token] context after")
    same_document = len({(row["data"], row["document"]) for row in rows}) == 1
    for row in rows:
        before, continuation, after = (repr(row[name])[1:-1] for name in ("before", "next", "after"))
        where = "" if same_document else f"  ({row['data']}, document {row['document']})"
        print(f"{row['distance']:10.4f}  {before}[{continuation}]{after}{where}")
    if same_document:
        print(f"all in document {rows[0]['document']} of {rows[0]['data']}")
