"""Measuring a trained model on a split of data, with its progress on stderr."""

import math
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
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import UserError
from kinformer.lab.train.evaluate import Measurement, evaluate, evaluate_batches
from kinformer.lab.train.head_values import LayerValues, has_head_values, head_values_by_layer
from kinformer.nn.exits.never_exit import NeverExit


def refuse_picture(model: Any, out: Path | None) -> None:
    """UserError where heads are to be drawn that learn no number, or into a file that cannot be made."""
    if out is None:
        return
    if not has_head_values(model):
        raise UserError(f"heads of this {model.member.name} learn no number that can be drawn; leave out --out")
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--out {out}: give a file that ends with .png, .svg or .pdf")
    refuse_no_folder(out)


def row_length(model: Any, data: Any, parts: Iterable[str], length: int) -> int:
    """The number of tokens in each row that the model reads."""
    if not isinstance(data, TextData):
        return data.longest_length(length) or length
    return min(length, model.window or length, max((len(getattr(data, part)) for part in parts), default=1))


def evaluate_split(
    model: Any, data: Any, split: str, limit: int | None, reading: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, LayerValues]]:
    """The metric of a model on a split with all that is told of it, and what its heads have learned."""
    began = monotonic()
    with head_values_by_layer(model) as heads:
        score = score_model(model, data, split, limit, reading)
    width = score.bytes_per_token
    if not math.isfinite(score.value):
        raise ValueError(f"{score.metric.name} is {score.value} on {data.name}: the weights are spoiled, or too large")
    has_perplexity = score.metric.unit == "bits" and score.value * width < sys.float_info.max_exp
    perplexity = {"perplexity": 2 ** (score.value * width)} if has_perplexity else {}
    numbers = {"value": score.value, "count": score.count, "bytes_per_token": width, **perplexity}
    seconds = round(monotonic() - began, 3)
    # lanes of some bytes are of the first, and levels of those from all over the split
    same = limit is None or reading["lanes"] is None
    levels = data.levels(model, split, reading["length"], limit or sys.maxsize) if same else {}
    extras = {"others": dict(score.extras), "levels": dict(levels), **_measured_part(data, split, limit, reading)}
    in_bytes = isinstance(data, TextData) and score.metric.unit == "bits"  # for any tokenizer
    metric = score.metric._replace(per="byte") if in_bytes else score.metric
    learned = {"heads": {name: asdict(by_layer) for name, by_layer in heads.items()}} if heads else {}
    return {"metric": metric._asdict(), **numbers, **extras, **learned, "seconds": seconds}, heads


def _measured_part(data: Any, split: str, limit: int | None, reading: dict[str, Any]) -> dict[str, str]:
    """Which bytes of a text are measured, in words, where not all of them are."""
    if not isinstance(data, TextData) or limit is None or limit >= data.part(split).bytes:
        return {}
    if reading["lanes"] is not None:
        return {"measured": f"the first {limit:,} bytes of {split}"}
    return {"measured": data.describe_sample(split, reading["length"], limit)}


def value_of_all_layers(model: Any, data: Any, split: str, limit: int | None, reading: dict[str, Any]) -> float:
    """The same metric where nobody leaves early."""
    with use_rule(model.exits, NeverExit()):
        return score_model(model, data, split, limit, reading).value


def _share_of_text(data: Any, split: str) -> str:
    """How much of a text a split is, in words."""
    if not isinstance(data, TextData):
        return ""
    part, every = data.part(split), len(data.train) + len(data.valid) + len(data.test)
    return f", which is {len(part.tokens):,} of its {every:,} {part.unit}"


def score_model(model: Any, data: Any, split: str, limit: int | None, reading: dict[str, Any]) -> Measurement:
    """Measure a model on a split of data; ValueError if the model does not read such data."""
    lot, stream_limit = getattr(data, split), limit or sys.maxsize
    if not len(lot):
        raise ValueError(f"the {split} split of {data.name} is empty; give another --split, or more data")
    split_data = replace(data, valid=lot)
    if isinstance(data, TextData):
        open_stream(model, split_data, 1, 1, 0, stream_limit)  # refuses a text that the model does not read
        part = data.part(split)
        sample = part.spread(limit, reading["length"]) if reading.get("lanes") is None else part.first_bytes(limit)
        with progress("measuring", len(sample.tokens) - 1, "tokens") as on_progress:
            return evaluate(model, sample, on_progress=on_progress, probe=False, **reading)
    if reading.get("stride") is not None or reading.get("lanes") is not None or reading.get("full"):
        raise ValueError(
            f"windows and lanes are of texts, and {data.name} is none; leave out --stride, --full and --lanes"
        )
    batches = cast(Batches, open_stream(model, split_data, 1, reading["length"], 0, stream_limit)).validation_batches
    with progress("measuring", len(batches), "batches (--bytes N measures fewer)") as on_progress:
        return evaluate_batches(model, _reporting(batches, on_progress))


def _reporting(batches: Iterable[Any], on_progress: Callable[[int], None]) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        on_progress(number)
        yield batch


def sentence(data: Any, split: str, score: dict[str, Any]) -> str:
    """What a model is worth on a split, in words."""
    named = {name: score[name] for name in ("perplexity",) if name in score} | score["others"]
    named_values = "".join(f", {name} {value:.3f}" for name, value in named.items())
    source = f"{score['count']:,} judged of {split} of {data.name}{_share_of_text(data, split)}"
    source += f"; of these {score['measured']}" if "measured" in score else ""
    levels = "; ".join(f"{name} {value:.4f}" for name, value in score["levels"].items())
    return f"{score['value']:.4f} {score['metric']['name']}{named_values}; {source}{levels and f' ({levels})'}"
