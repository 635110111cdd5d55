"""A language model with a datastore (kNN-LM): checks, tuning on validation data, and evaluation."""

import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from kinformer.cli.support.evaluation import score_model
from kinformer.core.model import display_name
from kinformer.core.named_part import format_part
from kinformer.core.search import evenly_spaced, search_named
from kinformer.lab.datastore.datastore import Datastore
from kinformer.lab.datastore.index_file import measure_recall, read_index_record
from kinformer.lab.datastore.knn_lm_settings import KnnLMSettings, hash_manifest
from kinformer.lab.datastore.shards import digest
from kinformer.lab.datastore.tuning import sweep_cache, sweep_nearest
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.train.progress import clock
from kinformer.models.lm import LM
from kinformer.models.nearest_neighbour_lm import refuse_exits
from kinformer.models.support.hidden_taps import Tap
from kinformer.models.support.mixing_sweeps import SweepResult
from kinformer.nn.search.exact import ExactSearch

SOME = 32  # keys to look up in order to estimate the time
LOOKS, LOOK = 16, 64  # passages of a split to look for in the datastore's text, and tokens of each passage


class Lookup(NamedTuple):
    """The way to search a datastore, and how many of the nearest keys it finds.

    search: name of the search, such as "exact" or "hnsw".
    recall: share of the `k` nearest keys that the search finds.
    k: number of nearest keys for which the recall was measured.
    """

    search: str
    recall: float
    k: int

    def __str__(self) -> str:
        recall = f", which finds {self.recall:.1%} of the {self.k:,} nearest keys"
        return self.search + recall * (self.recall < 1)


def refuse_other_models(model: Any) -> None:
    """Refuse a model that cannot be combined with a datastore.

    model: the model.

    Errors: UserError for a model that is not a language model or has early exits.
    """
    if not isinstance(model, LM):
        raise UserError(
            f"cannot combine this {display_name(model)} with a datastore: it does not predict the next token of a "
            "text. Use a language model, such as gpt"
        )
    with from_user(ValueError):
        refuse_exits(model)


def open_datastore(model: Any, place: Path, index: str | None, k: int) -> tuple[Datastore, Lookup]:
    """Open a datastore for a model, with the way to search it.

    model: the model.
    place: the folder of the datastore.
    index: name of the search, such as "exact" or "hnsw"; if None, the index of the datastore is used, or exact search
        if it has none.
    k: number of nearest keys for which the recall of the search is measured.

    Errors: ValueError for the datastore of another model and for an unknown search.
    """
    search = None if index is None else search_named(index)
    store = Datastore.open(place, search)
    store.check(model)
    if search is None:
        record = read_index_record(place)
        name = None if record is None else record.search
    else:
        name = None if isinstance(search, ExactSearch) else format_part(search)
    if name is None:
        return store, Lookup("exact", 1.0, k)
    # the recorded recall is of 16 neighbours; an index that reads only some lists has a lower recall of more
    return store, Lookup(name, measure_recall(store.index, store.keys, k), k)


def refuse_measured_text(store: Datastore, data: Any) -> None:
    """Refuse a datastore that was built from the same text on which the kNN-LM is to be measured.

    store: the datastore.
    data: the text; its valid and test splits are measured.

    If the datastore holds only some passages of these splits, a warning is printed on stderr. Errors: ValueError.
    """
    for split in _filled_splits(data):
        part = data.part(split)
        same = digest(part.tokens.numpy(), part.document_starts.numpy())
        if any(manifest_part.part.text == same for manifest_part in store.texts):
            raise ValueError(
                f"the datastore was built from the {split} split of this text, so every token would find its own "
                "context. Build it from the train split, or give another text with --data"
            )
        begins = evenly_spaced(max(len(part.tokens) - LOOK, 0) + 1, LOOKS).tolist()
        repeated = store.count_occurring([part.tokens[at : at + LOOK] for at in begins])
        if 8 * repeated > len(begins):
            print(
                f"warning: {repeated} of {len(begins)} sampled passages of {split} are in the datastore word for word, "
                "so the gain on other texts will be smaller",
                file=sys.stderr,
            )


def _filled_splits(data: Any) -> list[str]:
    """The names of the splits to measure on, valid and test, that are not empty."""
    return [name for name in ("valid", "test") if len(getattr(data, name))]


def announce_lookups(store: Datastore, lookup: Lookup, data: Any, limit: int | None, k: int, times: int) -> None:
    """Print on stderr how many tokens are looked up in a datastore, and about how long that takes.

    store: the datastore.
    lookup: the way to search it.
    data: the text to measure on.
    limit: maximum number of bytes of a split to measure; the whole split if None.
    k: number of nearest keys to find for each token.
    times: number of lookups per token; overlapping windows look up each token several times.

    The time is estimated from a few timed lookups.
    """
    sample_keys = store.keys.at(evenly_spaced(len(store), SOME)).float()
    store.index.search(sample_keys, k)  # untimed, because it loads the keys from the disk
    began = monotonic()
    store.index.search(sample_keys, k)
    each = (monotonic() - began) / len(sample_keys)
    sizes = [part.spread(limit) for part in (data.part("valid"), data.part("test")) if len(part.tokens)]
    valid, *test = (len(split_part.tokens) - 1 for split_part in sizes)
    count = times * (2 * valid + sum(test))  # valid is read for tuning and again for the result
    size = len(store) * store.width * store.keys.at(evenly_spaced(1, 1)).element_size()
    print(
        f"looking up {count:,} tokens among {len(store):,} keys ({size:,} bytes) with the search {lookup}: about "
        f"{clock(count * each)}, plus the time of the model",
        file=sys.stderr,
    )


def tune(
    model: Any, place: Path, store: Datastore, data: Any, sizes: tuple[int, int], limit: int | None, length: int
) -> tuple[KnnLMSettings, SweepResult]:
    """Choose the settings of a kNN-LM with the fewest bits per byte on the validation split.

    model: the language model.
    place: the folder of the datastore.
    store: the datastore.
    data: the text.
    sizes: largest number of nearest keys, and tokens of the continuous cache (0 for no cache).
    limit: maximum number of bytes to measure; the whole split if None.
    length: tokens of a window.

    Returns the chosen settings (weight, number of nearest keys, temperature), and the bits per byte of all
    combinations.
    """
    k, size = sizes

    def measure(candidate: Any) -> Any:
        return score_model(candidate, data, "valid", limit, {"length": length})

    tuned = KnnLMSettings(str(place.resolve()), hash_manifest(store), k, 0.0, 1.0)
    if size:
        best = sweep_cache(model, size, measure).best
        tuned = replace(tuned, size=size, share=best.weight, theta=best.temperature)
    tokens = data.part("valid").tokens
    swept = sweep_nearest(tuned.add_cache(model), store, Tap(model, store.tap).place, k, tokens, measure)
    best = swept.best
    return replace(tuned, k=best.k, weight=best.weight, temperature=best.temperature), swept


def measure_splits(
    model: Any, tuned: KnnLMSettings, store: Any, data: Any, limit: int | None, length: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Measure a model, the model with its cache if any, and the kNN-LM on validation and test data.

    model: the language model.
    tuned: the settings that `tune` chose.
    store: the datastore.
    data: the text; empty splits are left out.
    limit: maximum number of bytes of a split to measure; the whole split if None.
    length: tokens of a window.

    Returns the metric and the perplexity by split and by variant: "alone" (the model), "cache" (with the continuous
    cache) and "knn" (with the datastore too).
    """
    models = {
        "alone": model,
        **({"cache": tuned.add_cache(model)} if tuned.size else {}),
        "knn": tuned.add_datastore(model, store),
    }
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for split in _filled_splits(data):
        scores[split] = {}
        for name, variant in models.items():
            score = score_model(variant, data, split, limit, {"length": length})
            bits = score.value * score.bytes_per_token
            scores[split][name] = {score.metric.name: score.value, "perplexity": 2**bits}
    return scores
