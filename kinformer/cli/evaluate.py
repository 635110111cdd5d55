"""The command `kinformer evaluate`: measure a trained model on data."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from kinformer.cli.errors import print_warnings
from kinformer.cli.options import (
    LENGTH,
    MOST,
    Data,
    Datastore,
    Device,
    Json,
    Knn,
    Own,
    RunPrecision,
    Trained,
    Window,
    count,
    flag,
)
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, from_user

SPLITS = ("train", "valid", "test")
ALL = "all layers"
Split = Literal["train", "valid", "test", "all", "whole"]


def evaluate(
    ctx: typer.Context,
    folder: Trained,
    keywords: Annotated[
        list[str] | None,
        typer.Argument(
            callback=option_checks.changed, help="Keywords to change after the training, such as memory=512."
        ),
    ] = None,
    *,
    data: Data,
    split: Annotated[
        Split,
        typer.Option(
            help="Part to measure. all: each part that is not empty. whole: all of a held-out file, in one number."
        ),
    ] = "test",
    length: Window = None,
    stride: Annotated[
        int | None,
        count("Read windows of the text, each this many tokens after the previous one; default: half a window."),
    ] = None,
    full: Annotated[
        bool, flag("full", "With windows: do not score tokens with fewer than length - stride tokens before them.")
    ] = False,
    lanes: Annotated[
        int | None,
        count("Read this many parallel pieces of the text, and carry the state along each; 1 reads it in one piece."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            help="Number of bytes to measure, spread over the split; with --lanes, its first bytes; default: all.",
            min=2,
            max=MOST,
        ),
    ] = None,
    knn: Knn = False,
    datastore: Datastore = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for a picture of numbers that attention heads have learned, such as spans: .png, .svg, .pdf."
        ),
    ] = None,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Measure a trained model on data.

    \b
    Examples:
        kinformer evaluate runs/llama --data text=stdlib
        # With a longer memory than in training, on every split
        kinformer evaluate runs/xl memory=512 --data text=stdlib --split all
        # All of a file that was held out
        kinformer evaluate runs/llama --data text=PATH --split whole
        # Every token with at least 192 tokens before it
        kinformer evaluate runs/llama --data text=PATH --length 256 --stride 64

    The table has the model's metric, such as bits per byte or accuracy, and other values to compare it with. Without
    options the command measures as training does, but on the whole split.

    A model that was trained on windows reads windows of --length tokens, and the next window begins --stride tokens
    later. Only the new tokens of a window are scored, so every token counts once. A model that carries a state from
    segment to segment, such as transformer_xl, reads --lanes parallel pieces of the text and keeps its state. With
    --stride it reads windows instead. A masked model reads windows that do not overlap.

    Keywords that leave the shapes of the weights unchanged may get other values than in training, such as memory=512.
    Exit thresholds that `kinformer calibrate` has saved are used unless keywords are given.

    If attention heads have learned a number, such as a span, the numbers are printed and drawn into --out. A number
    that depends on the token is averaged over the measured tokens.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.calibrated_exits import leave_as_calibrated_here
    from kinformer.cli.support.evaluation import (
        PART_OF,
        evaluate_split,
        note_unmeasured,
        refuse_picture,
        row_length,
        score_table,
        value_of_all_layers,
    )
    from kinformer.cli.support.load_model import load_model, with_datastore
    from kinformer.cli.support.model_data import read_for_model
    from kinformer.cli.support.training import refuse_length
    from kinformer.lab.data.resolve import DataSource
    from kinformer.lab.train.reads_ahead import warn_of_measuring
    from kinformer.pages.head_values import save_head_values, tables

    model = load_model(folder, member, device, keywords or (), datastore, precision)
    calibrated = None if keywords else leave_as_calibrated_here(folder, model)
    model = with_datastore(model, folder, knn, datastore)
    refuse_picture(model, out)
    dataset = read_for_model(model, data, DataSource.read_whole if split == "whole" else DataSource.read)
    refuse_length(ctx, dataset)
    length = length or model.trained_length or LENGTH
    reading = {"length": length, "stride": stride, "lanes": lanes, "full": full}
    parts = [name for name in SPLITS if len(getattr(dataset, name, ()))] if split == "all" else [split]
    with from_user(ValueError), print_warnings():
        warn_of_measuring(model, row_length(model, dataset, [PART_OF.get(part, part) for part in parts], length))
        note_unmeasured(model, dataset, parts)
    scores = {}
    with from_user(ValueError, LookupError), print_warnings():
        for part in parts or SPLITS[-1:]:
            scores[part], heads = evaluate_split(model, dataset, part, limit, reading)
            if calibrated is not None:
                scores[part]["levels"][ALL] = value_of_all_layers(
                    model, dataset, PART_OF.get(part, part), limit, reading
                )
    if out is not None:
        with from_user(OSError, code=FAILED):
            save_head_values(heads, out, f"{folder}: {model.member.name}")
    if as_json:
        about = {"folder": str(folder), "member": model.member.name, "keywords": model.member.keywords}
        of = {"data": dataset.name, "bytes": limit, **reading}
        result = {"splits": scores} if split == "all" else {"split": split, **scores[split]}
        exits = {} if calibrated is None else {"threshold": calibrated["threshold"]}
        print(json.dumps({**about, **of, **exits, **result}, indent=2))
        return
    print(f"{folder}: {model.member.name} on {dataset.name}")
    print(*score_table(dataset, scores), sep="\n")
    print(*tables(heads), sep="\n", end="\n" if heads else "")
