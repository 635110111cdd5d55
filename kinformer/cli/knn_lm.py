"""`kinformer knn-lm DIR --datastore DS --data SPEC`: a trained model beside a datastore, and what that is worth."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kinformer.cli.errors import ended_by, print_warnings
from kinformer.cli.options import LENGTH, MOST, Data, Device, Json, Own, Trained, Window
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.datastore.knn_lm_settings import KnnLMSettings

K = 1024  # the paper's
PICTURE = "knn-lm.png"


def knn_lm(
    folder: Trained,
    *,
    datastore: Annotated[
        Path,
        typer.Option(callback=option_checks.datastore, help="What `kinformer datastore build` made with this model."),
    ],
    data: Data,
    k: Annotated[int, typer.Option("--k", help="Neighbours at most; fewer are tried too.", min=1, max=MOST)] = K,
    cache: Annotated[
        int, typer.Option(help="Also look up so many tokens before each: the continuous cache.", min=0, max=MOST)
    ] = 0,
    index: Annotated[
        str | None, typer.Option(help="Look up by exact, flat, hnsw, ivf or ivf_pq; by what `datastore index` kept.")
    ] = None,
    length: Window = None,
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
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support import knn_lm_tuning
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.model_data import read_text, source_for
    from kinformer.lab.datastore.tuning import sweep_plots
    from kinformer.pages.plots import save_plots

    model = load_model(folder, member, device)
    knn_lm_tuning.refuse_other_models(model)
    text = read_text(model, source_for(model, folder, data), "valid")
    print(f"{folder} beside {datastore}: some keys are looked up, to say how long all take ...", file=sys.stderr)
    with _nothing_kept(folder), from_user(ValueError, OSError, ImportError), print_warnings():
        length = length or model.trained_length or LENGTH
        store, lookup = knn_lm_tuning.open_datastore(model, datastore, index, k)
        knn_lm_tuning.refuse_measured_text(store, text)
        times = 1 if model.lanes else 2  # windows have half of the one before
        knn_lm_tuning.announce_lookups(store, lookup, text, limit, k, times)
        tuned, swept = knn_lm_tuning.tune(model, datastore, store, text, (k, cache), limit, length)
        scores = knn_lm_tuning.measure_splits(model, tuned, store, text, limit, length)
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
