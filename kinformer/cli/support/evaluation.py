"""Evaluation of a trained model on a split of data, with its progress on stderr."""

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any, cast

from kinformer.cli.errors import refuse_no_folder
from kinformer.cli.support.progress_bar import progress
from kinformer.decoding.consistency import use_rule
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data_fits_model import open_stream
from kinformer.lab.data.support.data_readers import data_readers
from kinformer.lab.data.support.train_valid_test import NAMES as SPLITS
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import UserError
from kinformer.lab.train.evaluate import Measurement, evaluate, evaluate_batches
from kinformer.lab.train.head_values import LayerValues, has_head_values, head_values_by_layer
from kinformer.nn.exits.never_exit import NeverExit

PART_OF = {"whole": "valid"}  # the split that holds all of the data, if it is read as a whole


def refuse_picture(model: Any, out: Path | None) -> None:
    """Refuse --out of `kinformer evaluate` if it could not be drawn or written.

    model: the model to evaluate.
    out: the picture file; None is accepted.

    Errors: UserError if the heads of the model have no learned number to draw, or if the file cannot be created.
    """
    if out is None:
        return
    if not has_head_values(model):
        raise UserError(
            f"--out cannot draw this {model.member.name}: its attention heads learn no number. Leave out --out"
        )
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"wrong file for --out: got {out}, expected a name that ends with .png, .svg or .pdf")
    refuse_no_folder(out)


def row_length(model: Any, data: Any, parts: Iterable[str], length: int) -> int:
    """Return the number of tokens in each row that the model reads when it is evaluated.

    model: the model; its window limits the rows of a text.
    data: the data; data other than text fixes its own row length.
    parts: names of the splits to read; a row of a text is at most as long as the longest of them.
    length: the length that the user asked for.
    """
    if not isinstance(data, TextData):
        return data.longest_length(length) or length
    return min(length, model.window or length, max((len(getattr(data, part)) for part in parts), default=1))


def evaluate_split(
    model: Any, data: Any, split: str, limit: int | None, reading: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, LayerValues]]:
    """Evaluate a model on a split of data.

    model: the model.
    data: the data.
    split: "train", "valid", "test", or "whole" for data that was read as a whole.
    limit: largest number of bytes of the split to measure; the whole split if None.
    reading: settings of the rows, as in `lab.train.evaluate`: `length`, and for text `stride` of windows, number of
        `lanes` (parallel pieces of the text) and `full`.

    Returns the score (metric, value and counts) for JSON, and the numbers that the attention heads have learned, by
    layer. Errors: ValueError if the metric is not finite.
    """
    began, measured = monotonic(), _measured_part(data, split, limit, reading)
    split = PART_OF.get(split, split)
    with head_values_by_layer(model) as heads:
        score = score_model(model, data, split, limit, reading)
    width = score.bytes_per_token
    if not math.isfinite(score.value):
        raise ValueError(
            f"{score.metric.name} is {score.value} on {data.name}: the model's outputs are not finite, because its "
            "weights are damaged or too large. Use another checkpoint"
        )
    has_perplexity = score.metric.unit == "bits" and score.value * width < sys.float_info.max_exp
    perplexity = {"perplexity": 2 ** (score.value * width)} if has_perplexity else {}
    numbers = {"value": score.value, "count": score.count, "bytes_per_token": width, **perplexity}
    seconds = round(monotonic() - began, 3)
    # with a limit, lanes read the first bytes but the baselines read samples from the whole split
    same = limit is None or reading["lanes"] is None
    levels = data.levels(model, split, reading["length"], limit or sys.maxsize) if same else {}
    extras = {"others": dict(score.extras), "levels": dict(levels), **measured}
    in_bytes = isinstance(data, TextData) and score.metric.unit == "bits"  # comparable between tokenizers
    metric = score.metric._replace(per="byte") if in_bytes else score.metric
    learned = {"heads": {name: asdict(by_layer) for name, by_layer in heads.items()}} if heads else {}
    return {"metric": metric._asdict(), **numbers, **extras, **learned, "seconds": seconds}, heads


def note_unmeasured(model: Any, data: Any, parts: Iterable[str]) -> None:
    """Note on stderr that only a part of a file is measured, if the model was trained on other data.

    model: the model.
    data: the data.
    parts: the measured splits.
    """
    if model.trained_on is None or not hasattr(data, "train") or PART_OF.keys() & set(parts):
        return
    has_valid = "valid" in inspect.signature(data_readers()[data.name.partition("=")[0]].read).parameters
    if (
        not is_same_data(model.trained_on, data.name)
        and has_valid
        and not set(SPLITS) <= set(parts)
        and ",valid=" not in data.name
    ):
        print(
            f"{data.name} is not the training data, but only its {', '.join(parts)} split is measured; --split whole "
            "measures all of it",
            file=sys.stderr,
        )


def is_same_data(before: str, now: str) -> bool:
    """Return whether two names of data, such as "text=book.txt", name the same data, by whatever path.

    The options after a comma do not count. The folder in which a relative path was written is unknown. A relative path
    therefore also names every file whose path ends with it.

    before: the name that a trained model stores. An exported model stores it without folders.
    now: the name that is used in the present folder.
    """
    (kind, _, place), (other_kind, _, other) = (name.partition(",")[0].partition("=") for name in (before, now))
    if kind != other_kind:
        return False
    if place == other:
        return True
    trained, here = Path(place).expanduser(), Path(other).expanduser().resolve()
    if trained.resolve() == here or (trained.exists() and here.exists() and trained.samefile(here)):
        return True
    parts = [part for part in trained.parts if part != os.pardir]
    return not trained.is_absolute() and bool(parts) and list(here.parts[-len(parts) :]) == parts


def _measured_part(data: Any, split: str, limit: int | None, reading: dict[str, Any]) -> dict[str, str]:
    """A description of the measured bytes of a text; empty if all of the split is measured."""
    part, name = PART_OF.get(split, split), "the whole text" if split in PART_OF else split
    if not isinstance(data, TextData) or limit is None or limit >= data.part(part).bytes:
        return {}
    if reading["lanes"] is not None:
        return {"measured": f"the first {limit:,} bytes of {name}"}
    return {"measured": data.describe_sample(part, reading["length"], limit).removesuffix(part) + name}


def value_of_all_layers(model: Any, data: Any, split: str, limit: int | None, reading: dict[str, Any]) -> float:
    """Return the metric of a model on a split of data if every token uses all layers.

    model: a model with early exits.
    data: the data.
    split: "train", "valid" or "test".
    limit: largest number of bytes of the split to measure; the whole split if None.
    reading: settings of the rows, as in `evaluate_split`.
    """
    with use_rule(model.exits, NeverExit()):
        return score_model(model, data, split, limit, reading).value


def score_model(model: Any, data: Any, split: str, limit: int | None, reading: dict[str, Any]) -> Measurement:
    """Measure a model on a split of data.

    model: the model.
    data: the data.
    split: "train", "valid" or "test".
    limit: largest number of bytes of the split to measure; the whole split if None.
    reading: settings of the rows, as in `evaluate_split`.

    Errors: ValueError if the split is empty or the model does not read such data.
    """
    lot, stream_limit = getattr(data, split), limit or sys.maxsize
    if not len(lot):
        raise ValueError(f"the {split} split of {data.name} is empty; give another --split, or more data")
    split_data = replace(data, valid=lot)
    if isinstance(data, TextData):
        open_stream(model, split_data, 1, 1, 0, stream_limit)  # raises if the model does not read this text
        part = data.part(split)
        sample = part.spread(limit, reading["length"]) if reading.get("lanes") is None else part.first_bytes(limit)
        with progress("measuring", len(sample.tokens) - 1, "tokens") as on_progress:
            return evaluate(model, sample, on_progress=on_progress, probe=False, **reading)
    if reading.get("stride") is not None or reading.get("lanes") is not None or reading.get("full"):
        raise ValueError(
            f"--stride, --full and --lanes have no effect on {data.name}, because it is not a text. Leave them out"
        )
    batches = cast(Batches, open_stream(model, split_data, 1, reading["length"], 0, stream_limit)).validation_batches
    with progress("measuring", len(batches), "batches (use --bytes N to measure fewer)") as on_progress:
        return evaluate_batches(model, _reporting(batches, on_progress))


def _reporting(batches: Iterable[Any], on_progress: Callable[[int], None]) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        on_progress(number)
        yield batch


def score_table(data: Any, scores: dict[str, dict[str, Any]]) -> list[str]:
    """Return the scores of a model as the lines of a table, with a column for each split.

    data: the data.
    scores: for each split, its score as `evaluate_split` returns it.
    """
    first = next(iter(scores.values()))
    better = "lower" if first["metric"]["better"] == "less" else "higher"
    rows = [(first["metric"]["name"], [f"{score['value']:.4f}" for score in scores.values()], f"{better} is better")]
    if "perplexity" in first:
        rows.append(("perplexity", [f"{score['perplexity']:.3f}" for score in scores.values()], ""))
    for kind, digits, note in (("others", 3, ""), ("levels", 4, "for comparison")):
        for name in first[kind]:
            rows.append((name, [f"{score[kind].get(name, math.nan):.{digits}f}" for score in scores.values()], note))
    rows.append(("predictions", [f"{score['count']:,}" for score in scores.values()], ""))
    if isinstance(data, TextData):
        whole = sum(len(getattr(data, name)) for name in SPLITS)
        parts = [data.part(PART_OF.get(split, split)) for split in scores]
        note = "" if "whole" in scores else f"train, valid and test have {whole:,}"
        rows.append((parts[0].unit, [f"{len(part.tokens):,}" for part in parts], note))
    names, columns, notes = zip(*rows, strict=True)
    sizes = [max(map(len, column)) for column in zip(scores, *columns, strict=True)]
    wide = max(map(len, names))

    def line(name: str, cells: Iterable[str], note: str = "") -> str:
        numbers = "  ".join(f"{cell:>{size}}" for cell, size in zip(cells, sizes, strict=True))
        return f"  {name:<{wide}}  {numbers}  {note}".rstrip()

    lines = [line("", scores), *map(line, names, columns, notes)]
    measured = dict.fromkeys(score["measured"] for score in scores.values() if "measured" in score)
    return [*lines, *(f"  measured on {text}" for text in measured)]
