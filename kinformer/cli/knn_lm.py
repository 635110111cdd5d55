"""`kinformer knn-lm DIR --datastore DS --data SPEC`: a trained model beside a datastore, and what that is worth."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kinformer.cli.errors import ended_by, noted
from kinformer.cli.evaluate import scored
from kinformer.cli.options import LENGTH, MOST, Data, Device, Json, Own, Trained
from kinformer.cli.support import option_checks as early
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.datastore.datastore import Datastore
    from kinformer.lab.datastore.knn_lm_settings import KnnLMSettings
    from kinformer.models.support.sweeps import Swept

K = 1024  # the paper's
PICTURE = "knn-lm.png"
SOME = 32  # keys that are looked up to know how long that takes
LOOKS, LOOK = 16, 64  # stretches of a split that are looked for in the datastore's text, and tokens of each


def knn_lm(
    folder: Trained,
    *,
    datastore: Annotated[
        Path, typer.Option(callback=early.datastore, help="What `kinformer datastore build` made with this model.")
    ],
    data: Data,
    k: Annotated[int, typer.Option("--k", help="Neighbours at most; fewer are tried too.", min=1, max=MOST)] = K,
    cache: Annotated[
        int, typer.Option(help="Also look up so many tokens before each: the continuous cache.", min=0, max=MOST)
    ] = 0,
    index: Annotated[
        str | None, typer.Option(help="Look up by exact, flat, hnsw, ivf or ivf_pq; by what `datastore index` kept.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens in a window or chunk; as in training unless given.", min=1, max=MOST)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--bytes", help="Measure so many bytes of valid and of test.", min=2, max=MOST)
    ] = None,
    device: Device = None,
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Let a trained model look up a datastore (kNN-LM): tune it on valid, and measure test with and without it.

    Nothing is trained. The share of what is looked up (lambda), how many neighbours, and the temperature of their
    distances are the best of a grid on valid, in one reading; of --cache its share and flatness first. They are written
    beside the model (knn-lm.json), with a picture of the curves (knn-lm.png): `generate` and `evaluate` take them with
    --knn, and look up by the index that `datastore index` kept, or else exactly. How many keys are looked through how
    often, and about how long that takes, is said before it begins; --bytes makes it shorter.
    """
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.model_data import read_text
    from kinformer.lab.datastore.tuning import sweep_plots
    from kinformer.pages.plots import save_plots

    model = load_model(folder, member, device)
    _refuse_other(model)
    text = read_text(model, data, folder, "valid")
    print(f"{folder} beside {datastore}: some keys are looked up, to say how long all take ...", file=sys.stderr)
    with _nothing_kept(folder), from_user(ValueError, OSError, ImportError), noted():
        length = length or model.trained_length or LENGTH
        store, lookup = _opened(model, datastore, index, k)
        _refuse_known(store, text)
        _tell(store, lookup, text, limit, k, 1 if model.lanes else 2)  # windows have half of the one before
        tuned, swept = _tuned(model, datastore, store, text, (k, cache), limit, length)
        scores = _scores(model, tuned, store, text, limit, length)
    if as_json:
        of = {"folder": str(folder), "datastore": str(datastore), "entries": len(store), **lookup._asdict()}
        of["data"] = text.name
        numbers = {name: value for name, value in asdict(tuned).items() if name not in ("datastore", "store")}
        print(json.dumps({**of, **numbers, "splits": scores}, indent=2))
    else:
        _print(folder, tuned, scores)
    try:  # behind what took so long to find
        title = f"{folder} beside {datastore}, {len(store):,} entries, on valid of {text.name}"
        save_plots(sweep_plots(swept), title, folder / PICTURE, share_y=True)
        tuned.save(folder)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error}", FAILED) from error
    if not as_json:
        print(f"the curves are in {folder / PICTURE}; kinformer generate {folder} --knn --prompt TEXT", file=sys.stderr)


@contextmanager
def _nothing_kept(folder: Path) -> Iterator[None]:
    """Say that a command that was stopped kept nothing."""
    try:
        yield
    except KeyboardInterrupt as stop:
        less = "--bytes measures less"
        raise UserError(f"stopped; nothing is kept, {folder} is as it was; {less}", ended_by(stop)) from stop


class _Lookup(NamedTuple):
    """How a datastore is looked up, and which share of the nearest `k` is found so."""

    search: str
    recall: float
    k: int

    def __str__(self) -> str:
        recall = f", which finds {self.recall:.1%} of the nearest {self.k:,}"
        return self.search + recall * (self.recall < 1)


def _refuse_other(model: Any) -> None:
    """UserError for a model beside which nothing can stand."""
    from kinformer.core.model import called
    from kinformer.models.lm import LM
    from kinformer.models.nearest import refuse_exits

    if not isinstance(model, LM):
        raise UserError(f"this {called(model)} predicts no next token of a text; give a language model, like gpt")
    with from_user(ValueError):
        refuse_exits(model)


def _opened(model: Any, place: Path, index: str | None, k: int) -> "tuple[Datastore, _Lookup]":
    """The datastore, looked up as is wanted or as it is kept; ValueError for another model's, and no such index."""
    from kinformer.core.search import format_search, search_named
    from kinformer.lab.datastore.datastore import Datastore
    from kinformer.lab.datastore.indexing import measure_recall, read_index_record
    from kinformer.nn.search.exact import ExactSearch

    search = None if index is None else search_named(index)
    store = Datastore.open(place, search)
    store.check(model)
    if search is None:
        record = read_index_record(place)
        name = None if record is None else record.search
    else:
        name = None if isinstance(search, ExactSearch) else format_search(search)
    if name is None:
        return store, _Lookup("exact", 1.0, k)
    # what is told of a kept index is of few, and one that reads some lists finds less of many
    return store, _Lookup(name, measure_recall(store.index, store.keys, k), k)


def _refuse_known(store: "Datastore", data: Any) -> None:
    """ValueError for a datastore of the very text that it would be tuned and measured on; a note where it has some."""
    from kinformer.core.search import spread
    from kinformer.lab.datastore.shards import digest

    for split in _splits(data):
        part = data.part(split)
        same = digest(part.tokens.numpy(), part.firsts.numpy())
        if any(manifest_part.part.text == same for manifest_part in store.texts):
            raise ValueError(
                f"the datastore is of {split} itself, where every token finds itself again: build it of train, or give "
                "--data of another text"
            )
        begins = spread(max(len(part.tokens) - LOOK, 0) + 1, LOOKS).tolist()
        repeated = store.holds([part.tokens[at : at + LOOK] for at in begins])
        if 8 * repeated > len(begins):
            print(
                f"{repeated} of {len(begins)} stretches of {split} stand in the datastore word for word: what it gains "
                "there it gains on no other text",
                file=sys.stderr,
            )


def _splits(data: Any) -> list[str]:
    """The splits that are not empty, of those that a datastore is measured on."""
    return [name for name in ("valid", "test") if len(getattr(data, name))]


def _tell(store: "Datastore", lookup: _Lookup, data: Any, limit: int | None, k: int, times: int) -> None:
    """Say on stderr what is looked through, and about how long that takes, by some keys that are looked up."""
    from time import monotonic

    from kinformer.core.search import spread
    from kinformer.lab.train.progress import clock

    sample_keys = store.keys.at(spread(len(store), SOME)).float()
    store.index.search(sample_keys, k)  # the first brings keys from the disk, which is done once
    began = monotonic()
    store.index.search(sample_keys, k)
    each = (monotonic() - began) / len(sample_keys)
    sizes = [part.spread(limit) for part in (data.part("valid"), data.part("test")) if len(part.tokens)]
    valid, *test = (len(split_part.tokens) - 1 for split_part in sizes)
    count = times * (2 * valid + sum(test))  # valid is read to choose, and again
    size = len(store) * store.width * store.keys.at(spread(1, 1)).element_size()
    print(
        f"{count:,} tokens are looked up among {len(store):,} keys ({size:,} bytes) by {lookup}: about "
        f"{clock(count * each)}, and the model's own time",
        file=sys.stderr,
    )


def _tuned(
    model: Any, place: Path, store: "Datastore", data: Any, sizes: tuple[int, int], limit: int | None, length: int
) -> "tuple[KnnLMSettings, Swept]":
    """The best numbers on valid, and how good all were."""
    from kinformer.lab.datastore.knn_lm_settings import KnnLMSettings, hash_manifest
    from kinformer.lab.datastore.tuning import sweep_cache, sweep_nearest
    from kinformer.models.support.taps import Tap

    k, size = sizes
    reading = {"length": length, "stride": None, "lanes": None}

    def measure(candidate: Any) -> Any:
        return scored(candidate, data, "valid", limit, reading)

    tuned = KnnLMSettings(str(place.resolve()), hash_manifest(store), k, 0.0, 1.0)
    if size:
        best = sweep_cache(model, size, measure).best
        tuned = replace(tuned, size=size, share=best.weight, theta=best.temperature)
    tokens = data.part("valid").tokens
    swept = sweep_nearest(tuned.add_cache(model), store, Tap(model, store.tap).place, k, tokens, measure)
    best = swept.best
    return replace(tuned, k=best.k, weight=best.weight, temperature=best.temperature), swept


def _scores(
    model: Any, tuned: "KnnLMSettings", store: Any, data: Any, limit: int | None, length: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Of each split that is not empty what the model is worth alone, with its cache if it has one, and with all."""
    models = {
        "alone": model,
        **({"cache": tuned.add_cache(model)} if tuned.size else {}),
        "knn": tuned.add_datastore(model, store),
    }
    reading = {"length": length, "stride": None, "lanes": None}
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for split in _splits(data):
        scores[split] = {}
        for name, variant in models.items():
            score = scored(variant, data, split, limit, reading)
            bits = score.value * score.bytes_per_token
            scores[split][name] = {score.metric.name: score.value, "perplexity": 2**bits}
    return scores


def _print(folder: Path, tuned: "KnnLMSettings", scores: dict[str, dict[str, dict[str, float]]]) -> None:
    cache = f", over a cache of {tuned.size:,} with a share of {tuned.share:g}, theta {tuned.theta:g}" * bool(
        tuned.size
    )
    if not tuned.weight:
        print("the datastore does not help: of all shares none is best, a lambda of 0", file=sys.stderr)
    print(f"{folder}: lambda {tuned.weight:g}, k {tuned.k:,}, temperature {tuned.temperature:g}{cache}")
    for split, variants in scores.items():
        for name, metrics in variants.items():
            text = ", ".join(f"{value:.4f} {metric}" for metric, value in metrics.items())
            print(f"  {split:<6}{name:<6}{text}")
