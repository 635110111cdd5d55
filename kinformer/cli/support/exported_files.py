"""Files that `kinformer export` writes, with what the folder of a run knows about its training."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kinformer.bridge.exported_graph import SHORTEST, export_program, program_bytes
from kinformer.bridge.hf_export import hf_folder, write_hf_folder
from kinformer.bridge.model_card import CARD, MeasuredValue, TrainingResults, model_card
from kinformer.checkpoint.atomic_files import contents, write_together
from kinformer.checkpoint.model_files import BEST
from kinformer.cli.support.option_checks import RESULTS
from kinformer.core.from_json import from_json
from kinformer.lab.train.history import History

PICTURES = ("curves.png", "exits.png", "knn-lm.png")  # of comparisons and of commands that add results to a run
LEVELS = 3  # folders above a model, MEMBER/SEED/best, in which a comparison has its results
CACHED = re.compile(r"models--.*--(?P<name>.+)")  # folder of a repository in the cache of huggingface_hub


class ExportResult(NamedTuple):
    """The result of an export.

    record: the result for programs.
    text: the result for readers.
    """

    record: dict[str, Any]
    text: str


def export_for_hf(model: Any, folder: Path, out: Path) -> ExportResult:
    """Write a model for transformers, with a model card.

    model: the model.
    folder: its folder, for what it knows about the training.
    out: folder to write.

    Errors: the errors of `hf_folder`; OSError if the folder cannot be written.
    """
    folder = folder.resolve() if folder.is_dir() else folder  # "." has no name
    content, picture = hf_folder(model), _picture(folder)
    results = _training_results(folder, None if picture is None else picture.name)
    extras = {CARD: model_card(model, content, _title(folder), results)}
    if picture is not None:
        extras[picture.name] = contents(picture)
    write_hf_folder(content, out, extras)
    files = [*extras, *content.files]
    record = {"folder": str(out), "architecture": content.architecture, "reason": content.reason, "files": files}
    trust = "" if content.reason is None else ", trust_remote_code=True"
    reason = "" if content.reason is None else f"\nno class of transformers computes it: {content.reason}"
    return ExportResult(
        record, f'wrote {content.architecture}: {content.loader}.from_pretrained("{out}"{trust}){reason}'
    )


def export_graph(model: Any, folder: Path, out: Path) -> ExportResult:
    """Write the graph of a model, `model.pt2`.

    model: the model.
    folder: its folder.
    out: folder to write.

    Errors: the errors of `export_program`; OSError if the folder cannot be written.
    """
    data = program_bytes(export_program(model))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "model.pt2"
    write_together({path: data})
    lengths = f"at least {SHORTEST}" if model.longest is None else f"{SHORTEST} to {model.longest:,}"
    record = {"folder": str(out), "files": [path.name], "shortest": SHORTEST, "longest": model.longest}
    return ExportResult(record, f"wrote {path}: a graph from tokens [B, T], with T of {lengths}, to logits [B, T, V]")


def _title(folder: Path) -> str:
    """The name of a model, for the title of its card: of its file, its run, or its repository on the Hub."""
    if folder.is_file():
        return folder.stem
    if folder.parent.name == "snapshots" and (repository := CACHED.fullmatch(folder.parts[-3])):
        return repository["name"]
    return folder.parent.name if folder.name == BEST else folder.name


def _places(folder: Path) -> Iterator[Path]:
    """Yield the folder of a model and the folders above it that may know more about it."""
    yield folder
    if folder.name == BEST:
        yield folder.parent


def _picture(folder: Path) -> Path | None:
    """The first picture of a run, or of the comparison that made it."""
    comparison = _comparison(folder)
    places = [*_places(folder), *([] if comparison is None else [comparison[0]])]
    return next((place / name for place in places for name in PICTURES if (place / name).is_file()), None)


def _training_results(folder: Path, picture: str | None) -> TrainingResults | None:
    """What the folder of a run, and of its comparison, says about the training; None if it says nothing."""
    for place in _places(folder):
        with suppress(OSError, ValueError):
            history = History.read(place)
            break
    else:
        return None
    points = history.points and [history.best if folder.name == BEST else history.points[-1]]
    metric = history.metric
    values = [
        value
        for point in points
        for value in (
            MeasuredValue(metric.name, metric.unit, point.valid, f"validation data, at step {point.step:,}"),
            *(MeasuredValue(name, "", extra, "validation data") for name, extra in point.extras.items()),
        )
    ]
    hardware = None
    if (comparison := _comparison(folder)) is not None:
        _, settings, run = comparison
        hardware, key = settings.get("hardware"), metric.name.replace(" ", "_")
        if settings.get("split") != "valid" and isinstance(run.get(key), float):
            values.insert(0, MeasuredValue(metric.name, metric.unit, run[key], f"{settings['split']} data"))
    return TrainingResults(history.step, history.tokens, history.seconds / 60, tuple(values), picture, hardware)


def _comparison(folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """The folder, the settings and the run's results in the comparison that trained a model; None if none did."""
    for place in list(folder.resolve().parents)[:LEVELS]:
        with suppress(OSError, ValueError, LookupError, TypeError, StopIteration):
            results = from_json(contents(place / RESULTS))
            runs = [run for member in results["members"] for run in member["runs"]]
            return (
                place,
                results["settings"],
                next(run for run in runs if (place / run["folder"]).resolve() == folder.resolve()),
            )
    return None
