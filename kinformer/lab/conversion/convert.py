"""convert: give a trained model another mechanism, and keep its trained weights."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast

from jaxtyping import Int
from torch import Tensor

from kinformer.checkpoint.checkpoint import config_of, find_conflict, load, save
from kinformer.convert.retrieval import RetrievalConversion
from kinformer.convert.support.changed_model import attention_layers, conversion_of
from kinformer.convert.support.conversion_plan import (
    ConversionPlan,
    PlannedConversion,
    find_conversion,
    plan_conversion,
)
from kinformer.core.checks import check_in_range
from kinformer.core.conversion import Progress
from kinformer.core.mechanism import NoState
from kinformer.core.missing_path import refuse_long_paths
from kinformer.core.model import Model, display_name
from kinformer.core.pattern import Pattern
from kinformer.core.quote import quote
from kinformer.lab.conversion.adaptation import VALID_BYTES, Adaptation
from kinformer.lab.conversion.conversion_report import ConversionReport, conversion_request
from kinformer.lab.conversion.layer_choice import layers_to_keep, losses_by_layer
from kinformer.lab.conversion.reading_costs import reading_costs
from kinformer.lab.data.as_data import as_data
from kinformer.lab.data.batches import device_of
from kinformer.lab.data.data_fits_model import refuse_other_tokens
from kinformer.lab.data.random_windows import RandomWindows
from kinformer.lab.data.text import SERVES, TextData
from kinformer.lab.datastore.build_retrieval import build_retrieval
from kinformer.lab.train.budget import make_budget
from kinformer.lab.train.evaluate import Measurement, evaluate
from kinformer.lab.train.folder_lock import lock_folder
from kinformer.lab.train.progress import ProgressDisplay
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings

LENGTH = 1024  # tokens of a row, at most the length of the model's training
FIT_TOKENS = 8192  # tokens that new parts are matched on
KEEP_TOKENS = 2048  # tokens on which each layer is measured


@refuse_long_paths()
def convert(
    model: Model,
    what: str | Pattern,
    *,
    data: Any = None,
    valid: Any = None,
    minutes: float | None = None,
    steps: int | None = None,
    settings: Settings | None = None,
    teach: float = 1.0,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    seconds: float = 0.0,
    seed: int = 0,
    progress: Progress = lambda stage, fraction: None,
    show: ProgressDisplay | None = None,
    on_plan: Callable[[ConversionPlan], None] = lambda plan: None,
    **options: Any,
) -> Any:
    """Return a trained model with another mechanism and the weights that fit it.

        import kinformer as kf
        model = kf.load("hf:HuggingFaceTB/SmolLM2-135M")
        short = kf.convert(model, "window", window=252, sinks=4)
        print(short.report.plan.promise)

    Choose it to try a mechanism of this library on a model that exists already. The source stays as it is. The result
    is a model like any other: train, save and export it.

    model: the trained model, from `kf.load` or a training.
    what: the recipe, such as "heads" or "yarn", or a pattern such as "Causal() & (Band(251) | Tokens(4))".
        `kinformer list convert` lists all, and `kinformer show convert/NAME` explains one.
    data: text that the new parts are matched on and the model is adapted to, and whose validation part measures the
        model; in the forms of `kf.fit`. Without data nothing is trained, and only the speed is measured (`seconds`).
    valid: validation data in the form of `data`; by default a part of `data`.
    minutes, steps: length of the adaptation, a training after the conversion; none by default.
    settings: settings of the adaptation. With None, LoRA of rank 8 changes the attention, and new parts train in full.
    teach: weight of the adaptation's loss that compares predictions with the source's; 0 trains without the source.
    out: folder of the converted model and its report, conversion.json. The adaptation saves its run there.
    resume: True continues the adaptation in `out`; nothing is converted again.
    overwrite: True allows replacing a model in `out`; by default such a folder is refused before anything is computed.
    seconds: time for measuring the speed of long rows, for each of the two models; 0 measures none. Encoders are not
        measured, because they have no decoding state.
    seed: seed of the rows that new parts are matched on.
    progress: function that is called with a stage of the conversion, and its finished fraction.
    show: display of the adaptation's progress.
    on_plan: function that is called with the plan, before anything is computed.
    options: options of the recipe.

    Returns: the converted model in eval mode. Its attribute `report` is a `ConversionReport`.

    Errors: ValueError, in one line, for an unknown recipe, and for a recipe that does not fit the model or its data.
    ValueError for a folder that holds another model or another conversion. TypeError for an unknown option or a wrong
    value. The errors of `kf.fit` for the adaptation.
    """
    if not isinstance(model, Model):
        raise ValueError(f"convert takes the model first: got {quote(model)}. Call convert(kf.load(FOLDER), what)")
    what = str(what) if isinstance(what, Pattern) else what
    folder = None if out is None else Path(out)
    if folder is not None and model.folder is not None and _is_within(Path(model.folder), folder):
        raise ValueError(f"{folder} holds the source, which a conversion leaves as it is. Give another out=")
    budget = None if minutes is None and steps is None else make_budget(minutes, steps)
    text = None if data is None else _read(model, data, valid)
    if budget is not None and text is None:
        raise ValueError("an adaptation trains on a text: got minutes or steps, but no data. Give data=")
    if resume and (folder is None or budget is None):
        raise ValueError("resume=True continues an adaptation in out: give out=, data=, and minutes= or steps=")
    check_in_range("seconds", seconds, 0, math.inf)
    planned, count = plan_conversion(model, what, options), options.get("keep", ())
    _check_plan(planned, count, text, folder)
    adaptation = None if budget is None else Adaptation(budget, settings, teach, folder, resume, show)
    new = planned.new_tensors()
    if adaptation is not None:
        planned.conversion.check_adaptation()
        adaptation.check(planned.converted, _parameters(planned.converted, new))
    request = conversion_request(model, find_conversion(what, options), teach)
    with nullcontext() if folder is None else lock_folder(folder):
        if resume and folder is not None:
            converted, report = load(folder), ConversionReport.load(folder)
            report.refuse_other_request(request, folder)
        else:
            if folder is not None:
                _prepare_folder(folder, model, overwrite)
            report = ConversionReport(display_name(model), planned.plan, request)
            converted = _convert(planned, count, report, text, folder, seed, progress, on_plan)
            _measure_long_rows(report, {"source": model, "converted": converted}, seconds, progress)
            if folder is not None:
                save(converted, folder)
                report.save(folder)
        if adaptation is not None and text is not None:
            with _timed(report, "adapt"):
                report.adaptation = adaptation.run(model, converted, text, _parameters(converted, new))
            with _timed(report, "measure the adapted model"):
                listener = partial(progress, "measure the adapted model")
                report.adapted = _measure(converted, text, _row_length(model), listener).value
            if folder is not None:
                report.save(folder)
    converted.report = report
    return converted


def _parameters(model: Model, names: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the model's own parameters among these; layers that were kept have no new ones."""
    return tuple(name for name, _ in model.named_parameters() if name in names)


def _is_within(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def _check_plan(planned: PlannedConversion, keep: Any, text: TextData | None, folder: Path | None) -> None:
    """Raise ValueError or TypeError for a conversion that could not be completed, before anything is computed."""
    if isinstance(keep, int):
        layers_to_keep([0.0] * len(attention_layers(planned.source)), keep)
        if text is None:
            raise ValueError(
                f"keep={keep} chooses the layers to keep by measurement: got no data. Give data, or numbers of layers "
                "such as keep=(3,7)"
            )
    if folder is not None:
        config_of(planned.converted)
    elif text is not None and isinstance(planned.conversion, RetrievalConversion) and not planned.conversion.datastore:
        raise ValueError("a datastore is built in the folder of the new model: got no folder. Give out=")


def _prepare_folder(folder: Path, model: Model, overwrite: bool) -> None:
    """Remove the results of an earlier training in a folder, or raise ValueError unless they may be overwritten."""
    if folder.is_file():
        raise ValueError(f"wrong out: got the file {folder}, expected a folder. Give another out=")
    if not overwrite and (other := find_conflict(folder, model)) is not None:
        raise ValueError(
            f"{folder} holds {other}, which would be overwritten; give another out=, or overwrite=True, or resume=True "
            "to continue its adaptation"
        )
    RunFolder(folder).clear()


def _measure_long_rows(report: ConversionReport, models: Mapping[str, Any], seconds: float, progress: Progress) -> None:
    """Put the costs of reading long rows into the report, for models that write text."""
    for name, model in models.items() if seconds else ():
        stage = f"read long rows ({name})"
        with _timed(report, stage), suppress(NoState):
            report.costs[name] = reading_costs(model, seconds, on_progress=partial(progress, stage))


def _convert(
    planned: PlannedConversion,
    keep: Any,
    report: ConversionReport,
    text: TextData | None,
    folder: Path | None,
    seed: int,
    progress: Progress,
    on_plan: Callable[[ConversionPlan], None],
) -> Any:
    """Return the converted model with its new parts matched to the source, and fill in the report of it."""
    model: Any = planned.source
    on_plan(report.plan)
    converted: Any = planned.carry_out()
    if text is None:
        return converted
    with _timed(report, "measure the source"):
        score = _measure(model, text, _row_length(model), partial(progress, "measure the source"))
        report.metric, report.before = score.metric.name, score.value
        report.bytes_per_token = score.bytes_per_token
        report.data = text.describe_sample("valid", _row_length(model), VALID_BYTES)
    with _timed(report, "match"):
        if isinstance(planned.conversion, RetrievalConversion):  # its datastore is a folder, and no weight
            converted = _retrieval(planned.conversion, model, converted, text, folder, progress)
            report.plan = PlannedConversion.of(model, conversion_of(converted.member.changes[-1])).plan
        else:
            planned.conversion.fit(model, converted, _rows(model, text, FIT_TOKENS, seed), progress)
    if isinstance(keep, int):
        with _timed(report, "choose layers"):
            rows = _rows(model, text, KEEP_TOKENS, seed + 1)
            report.layer_losses = losses_by_layer(model, converted, rows, partial(progress, "choose layers"))
            planned = _keep(planned, converted, layers_to_keep(report.layer_losses, keep))
            converted, report.plan = planned.converted, planned.plan
    with _timed(report, "measure the conversion"):
        listener = partial(progress, "measure the conversion")
        report.after = _measure(converted, text, _row_length(model), listener).value  # on the same rows
    return converted


def _retrieval(
    conversion: RetrievalConversion, model: Any, converted: Any, text: TextData, folder: Path | None, progress: Progress
) -> Any:
    """Return the model with a datastore of the training text, unless its options name a datastore."""
    if conversion.datastore is not None:
        return converted
    assert folder is not None
    return build_retrieval(model, text, folder, k=conversion.k, tap=conversion.tap, progress=progress)


@contextmanager
def _timed(report: ConversionReport, stage: str) -> Iterator[None]:
    """Enter a context whose seconds the report gets."""
    began = monotonic()
    yield
    report.seconds[stage] = monotonic() - began


def _read(model: Model, data: Any, valid: Any) -> TextData:
    """Return the text that a conversion reads."""
    if model.reads not in SERVES:
        raise ValueError(
            f"cannot measure this {display_name(model)}: it reads {model.reads}, and a conversion measures models of "
            "text. Leave out data"
        )
    text = as_data(model, data, valid)
    if not isinstance(text, TextData):
        raise ValueError(f"wrong data for a conversion: got {type(text).__name__}, expected a text. Give text=PATH")
    refuse_other_tokens(model, text)
    return text


def _row_length(model: Model) -> int:
    """Return the tokens of a row on which the model and its conversion are compared."""
    return min(LENGTH, model.window or LENGTH, model.trained_length or LENGTH)


def _rows(model: Model, text: TextData, tokens: int, seed: int) -> Int[Tensor, "N T"]:
    """Return rows of training text with this number of tokens in all, at random places."""
    length = _row_length(model)
    windows = RandomWindows(text.train, -(-tokens // length), length, seed, after=0)
    return cast(Tensor, windows.at(0)).to(device_of(model))


def _measure(model: Model, text: TextData, length: int, progress: Callable[[float], None]) -> Measurement:
    """Return the model's metric on validation data, in rows of this length."""
    part = text.part("valid")
    total = min(VALID_BYTES, part.bytes) / part.bytes_per_token
    return evaluate(
        model, part, length, VALID_BYTES, on_progress=lambda count: progress(min(count / total, 1.0)), probe=False
    )


def _keep(planned: PlannedConversion, converted: Model, layers: tuple[int, ...]) -> PlannedConversion:
    """Return the conversion with some layers left as they are, and the trained new parts of the others."""
    conversion = replace(planned.conversion, keep=layers)  # type: ignore[call-arg]
    result = PlannedConversion.of(planned.source, conversion)
    model, new = result.carry_out(), result.new_tensors()
    model.load_state_dict({name: x for name, x in converted.state_dict().items() if name in new}, strict=False)
    return result
