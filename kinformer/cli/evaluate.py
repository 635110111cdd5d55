"""`kinformer evaluate DIR --data SPEC`: what a trained model is worth on data."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from kinformer.cli.errors import noted, refuse_no_folder
from kinformer.cli.options import LENGTH, MOST, Data, Datastore, Device, Json, Knn, Own, Trained
from kinformer.cli.support import option_checks as early
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.train.evaluate import Measured
    from kinformer.lab.train.head_values import ByLayer

SPLITS = ("train", "valid", "test")
ALL = "all layers"
Split = Literal["train", "valid", "test", "all"]


def evaluate(
    ctx: typer.Context,
    folder: Trained,
    keywords: Annotated[
        list[str] | None, typer.Argument(callback=early.changed, help="Keywords of its member to change: memory=512.")
    ] = None,
    *,
    data: Data,
    split: Annotated[Split, typer.Option(help="Which part of the data, or each of them.")] = "test",
    length: Annotated[
        int | None, typer.Option(help="Tokens in a window or chunk; as in training unless given.", min=1, max=MOST)
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Read windows, each so many tokens after the one before.", min=1, max=MOST)
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Of windows: leave out what has less than length - stride before it.")
    ] = False,
    lanes: Annotated[
        int | None,
        typer.Option(help="Read so many lanes side by side, a state carried; 1 is one piece.", min=1, max=MOST),
    ] = None,
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
    from kinformer.cli.support.calibrated_exits import leave_as_calibrated_here
    from kinformer.cli.support.load_model import load_model, with_datastore
    from kinformer.cli.support.training import refuse_length
    from kinformer.lab.data.spec import read_spec
    from kinformer.lab.train.peek import warn_of_measuring

    model = load_model(folder, member, device, keywords or (), datastore)
    calibrated = None if keywords else leave_as_calibrated_here(folder, model)
    model = with_datastore(model, folder, knn, datastore)
    _refuse_picture(model, out)
    score = {} if model.tokenizer is None or "tokenizer=" in data else {"tokenizer": str(folder)}
    with from_user(ValueError, OSError, ImportError), noted():
        dataset = read_spec(data, **score)
    refuse_length(ctx, dataset)
    length = length or model.trained_length or LENGTH
    reading = {"length": length, "stride": stride, "lanes": lanes, "full": full}
    parts = [name for name in SPLITS if len(getattr(dataset, name, ()))] if split == "all" else [split]
    with from_user(ValueError), noted():
        warn_of_measuring(model, _row_length(model, dataset, parts, length))
    scores = {}
    heads: dict[str, ByLayer] = {}
    with from_user(ValueError, LookupError), noted():
        for part in parts or SPLITS[-1:]:
            scores[part], heads = _judged(model, dataset, part, limit, reading)
            if calibrated is not None:
                scores[part]["levels"][ALL] = _of_all_layers(model, dataset, part, limit, reading)
    if out is not None:
        from kinformer.pages.head_values import save_head_values

        with from_user(OSError, code=FAILED):
            save_head_values(heads, out, f"{folder}: {model.member.name}")
    if as_json:
        about = {"folder": str(folder), "member": model.member.name, "keywords": model.member.keywords}
        of = {"data": dataset.name, "bytes": limit, **reading}
        result = {"splits": scores} if split == "all" else {"split": split, **scores[split]}
        exits = {} if calibrated is None else {"threshold": calibrated["threshold"]}
        print(json.dumps({**about, **of, **exits, **result}, indent=2))
        return
    from kinformer.pages.head_values import tables

    for part, score in scores.items():
        _print(folder, dataset, part, score)
    print(*tables(heads), sep="\n", end="\n" if heads else "")


def _refuse_picture(model: Any, out: Path | None) -> None:
    """UserError where heads are to be drawn that learn no number, or into a file that cannot be made."""
    from kinformer.lab.train.head_values import has_head_values

    if out is None:
        return
    if not has_head_values(model):
        raise UserError(f"heads of this {model.member.name} learn no number that can be drawn; leave out --out")
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--out {out}: give a file that ends with .png, .svg or .pdf")
    refuse_no_folder(out)


def _row_length(model: Any, data: Any, parts: Iterable[str], length: int) -> int:
    """The number of tokens in each row that the model reads."""
    from kinformer.lab.data.text import Text

    if not isinstance(data, Text):
        return data.longest(length) or length
    return min(length, model.window or length, max((len(getattr(data, part)) for part in parts), default=1))


def _judged(
    model: Any, data: Any, split: str, limit: int | None, reading: dict[str, Any]
) -> "tuple[dict[str, Any], dict[str, ByLayer]]":
    """The metric of a model on a split with all that is told of it, and what its heads have learned."""
    from kinformer.lab.train.head_values import head_values_by_layer

    began = monotonic()
    with head_values_by_layer(model) as heads:
        score = scored(model, data, split, limit, reading)
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
    extras = {"others": dict(score.others), "levels": dict(levels), **_limited(data, split, limit, reading)}
    metric = score.metric._replace(per="byte") if _in_bytes(data, score.metric) else score.metric
    learned = {"heads": {name: asdict(by_layer) for name, by_layer in heads.items()}} if heads else {}
    return {"metric": metric._asdict(), **numbers, **extras, **learned, "seconds": seconds}, heads


def _in_bytes(data: Any, metric: Any) -> bool:
    """True if the metric is bits of a text, which are reported per byte for any tokenizer."""
    from kinformer.lab.data.text import Text

    return isinstance(data, Text) and metric.unit == "bits"


def _limited(data: Any, split: str, limit: int | None, reading: dict[str, Any]) -> dict[str, str]:
    """Which bytes of a text are measured, in words, where not all of them are."""
    from kinformer.lab.data.text import Text

    if not isinstance(data, Text) or limit is None or limit >= data.part(split).bytes:
        return {}
    if reading["lanes"] is not None:
        return {"measured": f"the first {limit:,} bytes of {split}"}
    return {"measured": data.measured(split, reading["length"], limit)}


def _of_all_layers(model: Any, data: Any, split: str, limit: int | None, reading: dict[str, Any]) -> float:
    """The same metric where nobody leaves early."""
    from kinformer.decoding.consistency import ruled
    from kinformer.nn.exits.nobody import Nobody

    with ruled(model.exits, Nobody()):
        return scored(model, data, split, limit, reading).value


def _print(folder: Path, data: Any, split: str, score: dict[str, Any]) -> None:
    named = {name: score[name] for name in ("perplexity",) if name in score} | score["others"]
    more = "".join(f", {name} {value:.3f}" for name, value in named.items())
    source = f"{score['count']:,} judged of {split} of {data.name}{_share(data, split)}"
    source += f"; of these {score['measured']}" if "measured" in score else ""
    levels = "; ".join(f"{name} {value:.4f}" for name, value in score["levels"].items())
    print(f"{folder}: {score['value']:.4f} {score['metric']['name']}{more}; {source}{levels and f' ({levels})'}")


def _share(data: Any, split: str) -> str:
    """How much of a text a split is, in words."""
    from kinformer.lab.data.text import Text

    if not isinstance(data, Text):
        return ""
    part, every = data.part(split), len(data.train) + len(data.valid) + len(data.test)
    return f", which is {len(part.tokens):,} of its {every:,} {part.unit}"


def scored(model: Any, data: Any, split: str, limit: int | None, reading: dict[str, Any]) -> "Measured":
    """Measure a model on a split of data; ValueError if the model does not read such data."""
    from kinformer.cli.support.progress_bar import progress
    from kinformer.lab.data.batches import Batches
    from kinformer.lab.data.kind import stream
    from kinformer.lab.data.text import Text
    from kinformer.lab.train.evaluate import evaluate, evaluate_batches

    lot, most = getattr(data, split), limit or sys.maxsize
    if not len(lot):
        raise ValueError(f"the {split} split of {data.name} is empty; give another --split, or more data")
    split_data = replace(data, valid=lot)
    if isinstance(data, Text):
        stream(model, split_data, 1, 1, 0, most)  # refuses a text that the model does not read
        part = data.part(split)
        sample = part.spread(limit, reading["length"]) if reading["lanes"] is None else part.first(limit)
        with progress("measuring", len(sample.tokens) - 1, "tokens") as hear:
            return evaluate(model, sample, hear=hear, probe=False, **reading)
    if reading["stride"] is not None or reading["lanes"] is not None or reading.get("full"):
        wrong = "leave out --stride, --full and --lanes"
        raise ValueError(f"windows and lanes are of texts, and {data.name} is none; {wrong}")
    batches = cast(Batches, stream(model, split_data, 1, reading["length"], 0, most)).measured
    with progress("measuring", len(batches), "batches (--bytes N measures fewer)") as hear:
        return evaluate_batches(model, _told(batches, hear))


def _told(batches: Iterable[Any], hear: Callable[[int], None]) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        hear(number)
        yield batch
