"""The command `kinformer knn-lm`: tune a trained model that searches a datastore."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kinformer.cli.errors import ended_by, print_warnings, suggest_command
from kinformer.cli.options import LENGTH, MOST, Data, Device, Json, Own, RunPrecision, Trained, Window
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.datastore.knn_lm_settings import KnnLMSettings

K = 1024  # neighbours, as in the paper
PICTURE = "knn-lm.png"


def knn_lm(
    folder: Trained,
    *,
    datastore: Annotated[
        Path,
        typer.Option(
            callback=option_checks.datastore,
            help="Folder of the datastore that `kinformer datastore build` built with this model.",
        ),
    ],
    data: Data,
    k: Annotated[
        int,
        typer.Option(
            "--k",
            help="Maximum number of nearest keys to look up for each token; smaller numbers are tried too.",
            min=1,
            max=MOST,
        ),
    ] = K,
    cache: Annotated[
        int,
        typer.Option(
            help="Number of previous tokens that a continuous cache looks up besides the datastore; 0: no cache.",
            min=0,
            max=MOST,
        ),
    ] = 0,
    index: Annotated[
        str | None,
        typer.Option(
            help="Search of the datastore: exact, flat, hnsw, ivf or ivf_pq; default: its index if it has one, else "
            "exact."
        ),
    ] = None,
    length: Window = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            help="Number of bytes to measure of the validation data and of the test data; default: all.",
            min=2,
            max=MOST,
        ),
    ] = None,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Tune a kNN-LM: a trained model that searches a datastore.

    \b
    Examples:
        kinformer datastore build runs/xl --data text=PATH --out runs/store
        kinformer knn-lm runs/xl --datastore runs/store --data text=PATH
        kinformer generate runs/xl --knn --prompt "Who"

    A kNN-LM mixes two probabilities of the next token: the probability by the model, and the frequency of the token
    after similar contexts in the datastore. No weights are trained. The command tries a grid of three numbers, and
    keeps the combination with the fewest bits per byte on validation data. The numbers are the weight of the datastore
    (lambda), the number of nearest keys (k), and the temperature of their distances. With --cache it first chooses the
    weight and the flatness (theta) of a continuous cache, which searches previous tokens. It then measures validation
    and test data with and without the datastore.

    The numbers are saved in the model's folder as knn-lm.json, with a picture of the curves in knn-lm.png. `generate`
    and `evaluate` use them with --knn. They search with the index from `kinformer datastore index`, or exactly if there
    is none. Before it starts, the command prints how many keys it searches, how often, and about how long that takes. A
    smaller --bytes takes less time.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support import knn_lm_tuning
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.model_data import read_text, source_for
    from kinformer.lab.datastore.tuning import sweep_plots
    from kinformer.pages.plots import save_plots

    model = load_model(folder, member, device, precision=precision)
    knn_lm_tuning.refuse_other_models(model)
    text = read_text(model, source_for(model, data), "valid")
    print(f"{folder} with {datastore}: searching for a few keys to estimate the time ...", file=sys.stderr)
    with _nothing_kept(folder), from_user(ValueError, OSError, ImportError), print_warnings():
        length = length or model.trained_length or LENGTH
        store, lookup = knn_lm_tuning.open_datastore(model, datastore, index, k)
        knn_lm_tuning.refuse_measured_text(store, text)
        times = 1 if model.lanes else 2  # windows overlap by half, so each token is read twice
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
    try:  # after printing, so that a full disk does not lose the result of a long search
        title = f"{folder} with {datastore}, {len(store):,} entries, on valid of {text.name}"
        save_plots(sweep_plots(swept), title, folder / PICTURE, share_y=True)
        tuned.save(folder)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error}", FAILED) from error
    if not as_json:
        use_it = suggest_command("generate", folder, "--knn", "--prompt", "TEXT", member=member)
        print(f"the curves are in {folder / PICTURE}; to use it: {use_it}", file=sys.stderr)


@contextmanager
def _nothing_kept(folder: Path) -> Iterator[None]:
    """Enter a context in which Ctrl-C raises a UserError that nothing was saved."""
    try:
        yield
    except KeyboardInterrupt as stop:
        less = "--bytes N measures less"
        raise UserError(f"stopped; nothing was saved, and {folder} is unchanged; {less}", ended_by(stop)) from stop


def _print(folder: Path, tuned: "KnnLMSettings", scores: dict[str, dict[str, dict[str, float]]]) -> None:
    cache = f"; cache of {tuned.size:,} tokens with weight {tuned.share:g} and theta {tuned.theta:g}" * bool(tuned.size)
    if not tuned.weight:
        print("the datastore does not help: the best lambda is 0, which ignores it", file=sys.stderr)
    print(f"{folder}: lambda {tuned.weight:g}, k {tuned.k:,}, temperature {tuned.temperature:g}{cache}")
    for split, variants in scores.items():
        for name, metrics in variants.items():
            text = ", ".join(f"{value:.4f} {metric}" for metric, value in metrics.items())
            print(f"  {split:<6}{name:<6}{text}")
