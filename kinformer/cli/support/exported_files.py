"""Files that `kinformer export` writes, with what the folder of a run knows about its training."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kinformer.bridge.exported_graph import SHORTEST, export_program, program_bytes
from kinformer.bridge.hf_export import hf_folder
from kinformer.bridge.model_card import MeasuredValue, TrainingResults, model_card
from kinformer.checkpoint.atomic_files import contents, write_together
from kinformer.checkpoint.model_files import BEST
from kinformer.cli.support.option_checks import RESULTS
from kinformer.core.from_json import from_json
from kinformer.lab.errors import UserError
from kinformer.lab.train.history import History

PICTURES = ("curves.png", "exits.png", "knn-lm.png")  # of comparisons and of commands that add results to a run
LEVELS = 3  # folders above a model, MEMBER/SEED/best, in which a comparison has its results
NAMED = 3  # most files that a message names


class ExportResult(NamedTuple):
    """The result of an export.

    record: the result for programs.
    text: the result for readers.
    """

    record: dict[str, Any]
    text: str


def refuse_files(folder: Path, out: Path, overwrite: bool) -> None:
    """Refuse a folder with files unless --overwrite is given, and always the folder of the model itself.

    folder: the folder of the model.
    out: the folder to write.
    overwrite: True if --overwrite is given.

    Hidden files are ignored. Errors: UserError.
    """
    if out.resolve() == folder.resolve():
        raise UserError(f"--out {out} is the folder of the model, whose files would be replaced. Give another --out")
    names = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
    if names and not overwrite:
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        raise UserError(
            f"{out} holds {', '.join(names[:NAMED])}{more}. Give another --out, or --overwrite to write among them"
        )


def export_for_hf(model: Any, folder: Path, out: Path) -> ExportResult:
    """Write a model for transformers, with a model card.

    model: the model.
    folder: its folder, for what it knows about the training.
    out: folder to write.

    Errors: the errors of `hf_folder`; OSError if the folder cannot be written.
    """
    written, picture = hf_folder(model), _picture(folder)
    name = folder.parent.name if folder.name == BEST else folder.stem
    card = model_card(model, written, name, _training_results(folder, None if picture is None else picture.name))
    files = {"README.md": card, **({} if picture is None else {picture.name: contents(picture)}), **written.files}
    out.mkdir(parents=True, exist_ok=True)
    write_together({out / file: data for file, data in files.items()})
    trust = "" if written.reason is None else ", trust_remote_code=True"
    record = {"folder": str(out), "architecture": written.architecture, "reason": written.reason, "files": list(files)}
    why = "" if written.reason is None else f"\nwhy it is no class of transformers itself: {written.reason}"
    return ExportResult(record, f'wrote {written.architecture}: {written.loader}.from_pretrained("{out}"{trust}){why}')


def export_graph(model: Any, folder: Path, out: Path) -> ExportResult:
    """Write the graph of a model, `model.pt2`.

    model: the model.
    folder: its folder.
    out: folder to write.

    Errors: ValueError for a model whose graph depends on the tokens; OSError if the folder cannot be written.
    """
    data = program_bytes(export_program(model))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "model.pt2"
    write_together({path: data})
    most = f"at least {SHORTEST}" if model.longest is None else f"{SHORTEST} to {model.longest:,}"
    record = {"folder": str(out), "files": [path.name], "shortest": SHORTEST, "longest": model.longest}
    return ExportResult(record, f"wrote {path}: a graph from tokens [B, T], with T of {most}, to logits [B, T, V]")


def _places(folder: Path) -> Iterator[Path]:
    """Yield the folder of a model and the folders above it that may know more about it."""
    yield folder
    if folder.name == BEST:
        yield folder.parent


def _picture(folder: Path) -> Path | None:
    """The first picture of a run, or of the comparison that made it."""
    places = [*_places(folder), *([found[0]] if (found := _comparison(folder)) else [])]
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
    if (found := _comparison(folder)) is not None:
        _, settings, run = found
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
