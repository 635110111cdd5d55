"""`kinformer evaluate DIR --data SPEC`: what a trained model is worth on data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kinformer.cli.errors import print_warnings
from kinformer.cli.options import LENGTH, MOST, Data, Datastore, Device, Json, Knn, Own, Trained, Window, count, flag
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, from_user

if TYPE_CHECKING:
    pass

SPLITS = ("train", "valid", "test")
ALL = "all layers"
Split = Literal["train", "valid", "test", "all"]


def evaluate(
    ctx: typer.Context,
    folder: Trained,
    keywords: Annotated[
        list[str] | None,
        typer.Argument(callback=option_checks.changed, help="Keywords of its member to change: memory=512."),
    ] = None,
    *,
    data: Data,
    split: Annotated[Split, typer.Option(help="Which part of the data, or each of them.")] = "test",
    length: Window = None,
    stride: Annotated[int | None, count("Read windows, each so many tokens after the one before.")] = None,
    full: Annotated[bool, flag("full", "Of windows: leave out what has less than length - stride before it.")] = False,
    lanes: Annotated[int | None, count("Read so many lanes side by side, a state carried; 1 is one piece.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            help="Measure so many bytes of a split, in stretches from all over it, of --lanes its first; of windows of "
            "a series, sets or rows as many as these hold.",
            min=2,
            max=MOST,
        ),
    ] = None,
    knn: Knn = False,
    datastore: Datastore = None,
    out: Annotated[
        Path | None, typer.Option(help="A picture of what heads have learned, such as spans: a .png, .svg or .pdf.")
    ] = None,
    device: Device = None,
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Measure a trained model by its metric, such as bits per byte, bits per masked byte, accuracy.

    What learned from windows reads windows of --length tokens, half a window apart or --stride, and is judged on what
    is new in each: every token once, with at least length - stride tokens before it but in the first window, whose
    other tokens --full leaves out (with --stride 1 the last of each window is judged alone, as by Al-Rfou). What
    carries a state reads --lanes side by side, --length tokens at a time, and forgets nothing within one; with --stride
    it reads windows too. Without options it is the number that training measures, of the whole split. With --split all
    each split that is not empty is measured, a line each, or in JSON under "splits".

    Keywords that are no part of the weights can be changed: the memory of a transformer_xl by memory=512. With --knn
    the model looks up the datastore that `kinformer knn-lm` tuned it on.

    Tokens of a member with exits leave as `kinformer calibrate` found, unless keywords are given, and what all layers
    come to is told beside it.

    If the heads of a member learn a number, such as the span of an adaptive_span or the alpha of a da_transformer, the
    number of each head and layer is printed too, and drawn into --out. For a number that depends on the token, the mean
    over all measured tokens is printed; with --split all, the mean over the last split.
    """
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support.calibrated_exits import leave_as_calibrated_here
    from kinformer.cli.support.evaluation import (
        evaluate_split,
        refuse_picture,
        row_length,
        sentence,
        value_of_all_layers,
    )
    from kinformer.cli.support.load_model import load_model, with_datastore
    from kinformer.cli.support.model_data import read_for_model
    from kinformer.cli.support.training import refuse_length
    from kinformer.lab.train.reads_ahead import warn_of_measuring
    from kinformer.pages.head_values import save_head_values, tables

    model = load_model(folder, member, device, keywords or (), datastore)
    calibrated = None if keywords else leave_as_calibrated_here(folder, model)
    model = with_datastore(model, folder, knn, datastore)
    refuse_picture(model, out)
    dataset = read_for_model(model, data, folder)
    refuse_length(ctx, dataset)
    length = length or model.trained_length or LENGTH
    reading = {"length": length, "stride": stride, "lanes": lanes, "full": full}
    parts = [name for name in SPLITS if len(getattr(dataset, name, ()))] if split == "all" else [split]
    with from_user(ValueError), print_warnings():
        warn_of_measuring(model, row_length(model, dataset, parts, length))
    scores = {}
    with from_user(ValueError, LookupError), print_warnings():
        for part in parts or SPLITS[-1:]:
            scores[part], heads = evaluate_split(model, dataset, part, limit, reading)
            if calibrated is not None:
                scores[part]["levels"][ALL] = value_of_all_layers(model, dataset, part, limit, reading)
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
    for part, score in scores.items():
        print(f"{folder}: {sentence(dataset, part, score)}")
    print(*tables(heads), sep="\n", end="\n" if heads else "")
