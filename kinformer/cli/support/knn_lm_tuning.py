"""A datastore beside a trained model: opened, tuned on valid, and measured with and without it."""

import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from kinformer.cli.support.evaluation import score_model
from kinformer.core.model import display_name
from kinformer.core.search import evenly_spaced, format_search, search_named
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

SOME = 32  # keys that are looked up to know how long that takes
LOOKS, LOOK = 16, 64  # stretches of a split that are looked for in the datastore's text, and tokens of each


class Lookup(NamedTuple):
    """How a datastore is looked up, and which share of the nearest `k` is found so."""

    search: str
    recall: float
    k: int

    def __str__(self) -> str:
        recall = f", which finds {self.recall:.1%} of the nearest {self.k:,}"
        return self.search + recall * (self.recall < 1)


def refuse_other_models(model: Any) -> None:
    """UserError for a model beside which nothing can stand."""
    if not isinstance(model, LM):
        raise UserError(f"this {display_name(model)} predicts no next token of a text; give a language model, like gpt")
    with from_user(ValueError):
        refuse_exits(model)


def open_datastore(model: Any, place: Path, index: str | None, k: int) -> tuple[Datastore, Lookup]:
    """The datastore, looked up as is wanted or as it is kept; ValueError for another model's, and no such index."""
    search = None if index is None else search_named(index)
    store = Datastore.open(place, search)
    store.check(model)
    if search is None:
        record = read_index_record(place)
        name = None if record is None else record.search
    else:
        name = None if isinstance(search, ExactSearch) else format_search(search)
    if name is None:
        return store, Lookup("exact", 1.0, k)
    # what is told of a kept index is of few, and one that reads some lists finds less of many
    return store, Lookup(name, measure_recall(store.index, store.keys, k), k)


def refuse_measured_text(store: Datastore, data: Any) -> None:
    """ValueError for a datastore of the very text that it would be tuned and measured on; a note where it has some."""
    for split in _filled_splits(data):
        part = data.part(split)
        same = digest(part.tokens.numpy(), part.document_starts.numpy())
        if any(manifest_part.part.text == same for manifest_part in store.texts):
            raise ValueError(
                f"the datastore is of {split} itself, where every token finds itself again: build it of train, or give "
                "--data of another text"
            )
        begins = evenly_spaced(max(len(part.tokens) - LOOK, 0) + 1, LOOKS).tolist()
        repeated = store.count_occurring([part.tokens[at : at + LOOK] for at in begins])
        if 8 * repeated > len(begins):
            print(
                f"{repeated} of {len(begins)} stretches of {split} stand in the datastore word for word: what it gains "
                "there it gains on no other text",
                file=sys.stderr,
            )


def _filled_splits(data: Any) -> list[str]:
    """The splits that are not empty, of those that a datastore is measured on."""
    return [name for name in ("valid", "test") if len(getattr(data, name))]


def announce_lookups(store: Datastore, lookup: Lookup, data: Any, limit: int | None, k: int, times: int) -> None:
    """Say on stderr what is looked through, and about how long that takes, by some keys that are looked up."""
    sample_keys = store.keys.at(evenly_spaced(len(store), SOME)).float()
    store.index.search(sample_keys, k)  # the first brings keys from the disk, which is done once
    began = monotonic()
    store.index.search(sample_keys, k)
    each = (monotonic() - began) / len(sample_keys)
    sizes = [part.spread(limit) for part in (data.part("valid"), data.part("test")) if len(part.tokens)]
    valid, *test = (len(split_part.tokens) - 1 for split_part in sizes)
    count = times * (2 * valid + sum(test))  # valid is read to choose, and again
    size = len(store) * store.width * store.keys.at(evenly_spaced(1, 1)).element_size()
    print(
        f"{count:,} tokens are looked up among {len(store):,} keys ({size:,} bytes) by {lookup}: about "
        f"{clock(count * each)}, and the model's own time",
        file=sys.stderr,
    )


def tune(
    model: Any, place: Path, store: Datastore, data: Any, sizes: tuple[int, int], limit: int | None, length: int
) -> tuple[KnnLMSettings, SweepResult]:
    """The best numbers on valid, and how good all were."""
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
    """Of each split that is not empty what the model is worth alone, with its cache if it has one, and with all."""
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
