"""The command `kinformer calibrate`: find exit thresholds of a model with early exits, tested on data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from kinformer.cli.errors import refuse_useless
from kinformer.cli.options import MOST, Data, Device, Json, Own, RunPrecision, Split, count, flag, trained_folder
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.calibrate.threshold_search import By

PROMPT, TOKENS, WITHIN = 64, 32, 0.02
TESTED, GRID = 21, 11  # numbers of thresholds to choose from: in a test, and for each layer in a search


def _parse_search(text: str) -> int | str:
    """Parse --search: a number of draws, "grid" or "coordinates"; UserError for anything else."""
    if text in ("grid", "coordinates"):
        return text
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise UserError(
            f"--search {text}: give a number of random combinations from 1 to {MOST:,}, grid for every combination of "
            "--thresholds values, or coordinates to search layer by layer"
        )
    return int(text)


def calibrate(
    ctx: typer.Context,
    folder: Annotated[Path, trained_folder("of a member with early exits, such as calm.")],
    *,
    data: Data,
    delta: Annotated[
        float, typer.Option(help="Largest allowed mean loss of the generated texts, between 0 and 1.")
    ] = 0.1,
    epsilon: Annotated[
        float, typer.Option(help="Allowed probability that their mean loss is above --delta, between 0 and 1.")
    ] = 0.05,
    consistency: Annotated[
        Literal["textual", "risk"],
        typer.Option(
            help="Loss of a text: textual (its distance from the full model's text) or risk (its distance from the "
            "true text, minus the full model's distance, at least 0)."
        ),
    ] = "textual",
    search: Annotated[
        Any,
        typer.Option(
            help="Search one threshold per layer. N: N random combinations (10000 in the paper). grid: every "
            "combination of --thresholds values. coordinates: one layer after the other.",
            metavar="N|grid|coordinates",
            parser=_parse_search,
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(help=f"With --search: largest loss of the metric compared with all layers; default: {WITHIN:g}."),
    ] = None,
    samples: Annotated[
        int | None,
        count(
            "Number of texts to generate; default: twice what a proof needs. With --search: rows to measure; default: "
            "256."
        ),
    ] = None,
    thresholds: Annotated[
        int | None,
        typer.Option(
            help=f"Number of thresholds to choose from; default: {TESTED}; for each layer of a search: {GRID}.",
            min=2,
            max=1000,
        ),
    ] = None,
    split: Split = "valid",
    length: Annotated[int, count("Number of tokens in each prompt; with --search, in each measured row.")] = PROMPT,
    tokens: Annotated[int, count("Number of tokens to generate after each prompt.")] = TOKENS,
    overwrite: Annotated[
        bool, flag("overwrite", "With --search: also replace an exit threshold that was proven without --search.")
    ] = False,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Find exit thresholds, which let tokens skip layers of a model.

    \b
    Examples:
        # Allow texts a mean distance of 0.1 from those of the full model; more has probability 0.05
        kinformer calibrate runs/calm --data text=PATH --delta 0.1 --epsilon 0.05
        # Try 10,000 random combinations, of a model trained with classifier=geometric
        kinformer calibrate runs/depth_adaptive --data text=PATH --search 10000

    In a model with early exits, such as calm, a token skips the remaining layers once its confidence reaches a
    threshold. This command finds a low threshold that keeps the quality of the outputs, and saves it as exits.json in
    the model's folder. `generate` and `evaluate` use it from then on. The loss of a text is its distance from the text
    that the model generates with all layers (--consistency), between 0 and 1.

    Without --search, one threshold for all layers is tested with the method Learn then Test, on texts that are
    generated for prompts of the split. With probability 1 - epsilon, their mean loss is at most delta. The distance of
    two texts is 1 - ROUGE-L; for the answers of a task it is the share of tokens that differ. Each token is the
    likeliest one, so the proof does not hold for sampling. If no threshold is proven, no token skips a layer.

    With --search, one threshold for each layer is found, and nothing is proven. The combination that uses the fewest
    layers is saved, if its metric is at most --within worse than with all layers. N tries random combinations, as in
    the paper on depth-adaptive Transformers. grid suits a few layers, and coordinates suits many. exits.png shows the
    best metric at each mean number of layers. A search replaces a proven threshold only with --overwrite.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support import calibration
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.model_data import read_for_model
    from kinformer.cli.support.training import refuse_length
    from kinformer.decoding.calibrated_threshold import FILE, save_calibration
    from kinformer.lab.data.text import TextData

    by = cast("By | None", search)  # parsed by `_parse_search`
    within = _check_search_options(ctx, by, within, overwrite)
    if search is None:
        samples = _text_count(samples, delta, epsilon)
    model = load_model(folder, member, device, precision=precision)
    calibration.refuse_without_exits(model)
    if search is not None and not overwrite:
        calibration.refuse_replacing_proof(folder, model)
    dataset = read_for_model(model, data)
    if search is None and not isinstance(dataset, TextData):
        refuse_useless(ctx, f"on {dataset.noun}, whose rows set the lengths of prompts and answers", "length", "tokens")
    refuse_length(ctx, dataset)
    thresholds = thresholds or (TESTED if search is None else GRID)
    settings = calibration.CalibrationSettings(
        split, samples, length, tokens, delta, epsilon, consistency, thresholds, by, within
    )
    if search is None:
        threshold, record, lines = calibration.calibrate_by_test(model, dataset, settings)
    else:
        threshold, record, lines = calibration.calibrate_by_search(model, dataset, settings, folder)
    with from_user(OSError, code=FAILED):
        save_calibration(folder, model, threshold, record)
    if as_json:
        print(json.dumps({"folder": str(folder), "threshold": threshold, **record}, indent=2))
    else:
        print("\n".join(lines) + f"; saved in {folder / FILE}")


def _text_count(samples: int | None, delta: float, epsilon: float) -> int:
    """Return the number of texts to test; UserError if they are too few to prove anything."""
    from kinformer.lab.calibrate.learn_then_test import fewest_losses

    with from_user(ValueError):
        least = fewest_losses(delta, epsilon)
    if samples is not None and samples < least:
        raise UserError(
            f"{samples:,} texts are too few to prove delta {delta:g} with epsilon {epsilon:g}; give --samples "
            f"{least:,} or more, or a larger --delta or --epsilon"
        )
    return 2 * least if samples is None else samples


def _check_search_options(ctx: typer.Context, search: "By | None", within: float | None, overwrite: bool) -> float:
    """Return the tolerance of a search; UserError if it is negative or not finite, or an option has no effect."""
    if search is None:
        if within is not None:
            raise UserError(
                "--within has no effect without --search; leave it out, or set the largest allowed loss of texts "
                "with --delta"
            )
        if overwrite:
            raise UserError(
                "--overwrite has no effect without --search; leave it out: without --search, an earlier threshold "
                "is always replaced"
            )
        return WITHIN
    tolerance = "set the allowed loss of the metric with --within"
    refuse_useless(ctx, "with --search, which proves nothing", "delta", instead=tolerance)
    refuse_useless(ctx, "with --search, which proves nothing and generates nothing", "epsilon", "consistency", "tokens")
    if isinstance(search, int):
        evenly = "search grid or coordinates"
        refuse_useless(ctx, "with --search N, which draws thresholds at random", "thresholds", instead=evenly)
    within = WITHIN if within is None else within
    if not 0 <= within < float("inf"):
        raise UserError(f"wrong --within: got {within:g}, expected a finite number of at least 0")
    return within
