"""`kinformer knn-lm DIR --datastore DS --data SPEC`: a trained model beside a datastore, and what that is worth."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinformer.cli.errors import FAILED, UserError, from_user, noted
from kinformer.cli.evaluate import scored
from kinformer.cli.options import LENGTH, MOST, Data, Device, Json, Own

if TYPE_CHECKING:
    from kinformer.decoding.beside import Tuned
    from kinformer.models.support.sweeps import Swept

K = 1024  # the paper's
PICTURE = "knn-lm.png"


def knn_lm(
    folder: Annotated[Path, typer.Argument(help="A folder that train or compare wrote.")],
    *,
    datastore: Annotated[Path, typer.Option(help="What `kinformer datastore build` made with this model.")],
    data: Data,
    k: Annotated[int, typer.Option("--k", help="Neighbours at most; fewer are tried too.", min=1, max=MOST)] = K,
    cache: Annotated[
        int, typer.Option(help="Also look up so many tokens before each: the continuous cache.", min=0, max=MOST)
    ] = 0,
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
    --knn.
    """
    from kinformer.cli.support.loaded import loaded
    from kinformer.cli.support.tuning import draw
    from kinformer.cli.support.wanted_text import text_of

    model = loaded(folder, member, device)
    _refuse_other(model)
    found = text_of(model, data, folder, "valid")
    with from_user(ValueError, OSError, ImportError), noted():
        length = length or model.trained_length or LENGTH
        tuned, swept, store = _tuned(model, datastore, found, (k, cache), limit, length)
        scores = _scores(model, tuned, store, found, limit, length)
    try:
        tuned.save(folder)
        draw(swept, folder / PICTURE, f"{folder} beside {datastore}, {len(store):,} entries, on valid of {found.name}")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error}", FAILED) from error
    if as_json:
        of = {"folder": str(folder), "datastore": str(datastore), "entries": len(store), "data": found.name}
        numbers = {name: value for name, value in asdict(tuned).items() if name not in ("datastore", "store")}
        print(json.dumps({**of, **numbers, "splits": scores}, indent=2))
        return
    _print(folder, tuned, scores)


def _refuse_other(model: Any) -> None:
    """UserError for a model beside which nothing can stand."""
    from kinformer.models.lm import LM
    from kinformer.models.nearest import refuse_exits

    if not isinstance(model, LM):
        raise UserError(f"a {type(model).__name__} predicts no next token of a text; give a language model, like gpt")
    with from_user(ValueError):
        refuse_exits(model)


def _tuned(
    model: Any, place: Path, data: Any, sizes: tuple[int, int], limit: int | None, length: int
) -> "tuple[Tuned, Swept, Any]":
    """The best numbers on valid, how good all were, and the store."""
    from kinformer.cli.support.tuning import sweep_cache, sweep_nearest
    from kinformer.decoding.beside import Tuned, identity
    from kinformer.memories.datastore import Datastore
    from kinformer.models.support.taps import Tap

    k, size = sizes
    store = Datastore.open(place)
    store.check(model)
    reading = {"length": length, "stride": None, "lanes": None}

    def measure(one: Any) -> Any:
        return scored(one, data, "valid", limit, reading)

    tuned = Tuned(str(place.resolve()), identity(store), k, 0.0, 1.0)
    if size:
        best = sweep_cache(model, size, measure).best
        tuned = replace(tuned, size=size, share=best.weight, theta=best.temperature)
    tokens = data.part("valid").tokens
    swept = sweep_nearest(tuned.cached(model), store, Tap(model, store.tap).place, k, tokens, measure)
    best = swept.best
    return replace(tuned, k=best.k, weight=best.weight, temperature=best.temperature), swept, store


def _scores(
    model: Any, tuned: "Tuned", store: Any, data: Any, limit: int | None, length: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Of each split that is not empty what the model is worth alone, with its cache if it has one, and with all."""
    ways = {"alone": model, **({"cache": tuned.cached(model)} if tuned.size else {}), "knn": tuned.beside(model, store)}
    reading = {"length": length, "stride": None, "lanes": None}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for split in (name for name in ("valid", "test") if len(getattr(data, name))):
        found[split] = {}
        for name, one in ways.items():
            score, width = scored(one, data, split, limit, reading)
            found[split][name] = {score.metric.name: score.value, "perplexity": 2 ** (score.value * width)}
    return found


def _print(folder: Path, tuned: "Tuned", scores: dict[str, dict[str, dict[str, float]]]) -> None:
    cache = f", over a cache of {tuned.size:,} with a share of {tuned.share:g}, theta {tuned.theta:g}" * bool(
        tuned.size
    )
    print(f"{folder}: lambda {tuned.weight:g}, k {tuned.k:,}, temperature {tuned.temperature:g}{cache}")
    for split, ways in scores.items():
        for name, one in ways.items():
            told = ", ".join(f"{value:.4f} {what}" for what, value in one.items())
            print(f"  {split:<6}{name:<6}{told}")
    print(f"the curves are in {folder / PICTURE}; kinformer generate {folder} --knn --prompt TEXT", file=sys.stderr)
