"""convert: give a trained model another mechanism, and keep its trained weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, cast

from jaxtyping import Int
from torch import Tensor

from kinformer.convert.support.conversion_plan import ConversionPlan, PlannedConversion, find_conversion
from kinformer.core.model import Model, display_name
from kinformer.core.quote import quote
from kinformer.lab.conversion.conversion_report import ConversionReport
from kinformer.lab.conversion.layer_choice import layers_to_keep, losses_by_layer
from kinformer.lab.conversion.reading_costs import reading_costs
from kinformer.lab.data.as_data import as_data
from kinformer.lab.data.batches import device_of
from kinformer.lab.data.data_fits_model import refuse_other_tokens
from kinformer.lab.data.random_windows import RandomWindows
from kinformer.lab.data.text import SERVES, TextData
from kinformer.lab.train.evaluate import Measurement, evaluate

Progress = Callable[[str, float], None]
LENGTH = 1024  # tokens of a row, at most the length of the model's training
FIT_TOKENS = 8192  # tokens that new parts are matched on
KEEP_TOKENS = 2048  # tokens on which each layer is measured
VALID_BYTES = 16_384  # bytes of validation data in each measurement


def convert(
    model: Model,
    what: str,
    *,
    data: Any = None,
    valid: Any = None,
    seconds: float = 0.0,
    seed: int = 0,
    progress: Progress = lambda stage, fraction: None,
    on_plan: Callable[[ConversionPlan], None] = lambda plan: None,
    **options: Any,
) -> Any:
    """Return a trained model with another mechanism and with its trained weights.

        import kinformer as kf
        model = kf.load("hf:HuggingFaceTB/SmolLM2-135M")
        short = kf.convert(model, "window", window=252, sinks=4)
        print(short.report.plan.promise)

    Choose it to try a mechanism of this library on a model that exists already. The source stays as it is. The result
    is a model like any other: train, save and export it.

    model: the trained model, from `kf.load` or a training.
    what: the recipe, such as "heads" or "yarn", or a pattern expression such as "Causal() & (Band(251) | Tokens(4))".
        `kinformer list conversions` lists all, and `kinformer show conversions/NAME` explains one.
    data: text that the new parts are matched on, and whose validation part measures the model before and after; in the
        forms of `kf.fit`. Without data nothing is trained and nothing is measured.
    valid: validation data in the form of `data`; by default a part of `data`.
    seconds: time for measuring the speed of long rows, for each of the two models; 0 measures none. Encoders are not
        measured, because they have no decoding state.
    seed: seed of the rows that new parts are matched on.
    progress: function that is called with a stage of the conversion, and its finished fraction.
    on_plan: function that is called with the plan, before anything is computed.
    options: options of the recipe.

    Returns: the converted model in eval mode. Its attribute `report` is a `ConversionReport`.

    Errors: ValueError, in one line, for an unknown recipe, and for a recipe that does not fit the model or its data.
    TypeError for an unknown option or a wrong value.
    """
    if not isinstance(model, Model):
        raise ValueError(f"convert takes the model first: got {quote(model)}. Call convert(kf.load(FOLDER), what)")
    count = options.get("keep", ())
    if isinstance(count, int):
        options["keep"] = ()
    planned = PlannedConversion.of(model, find_conversion(what, options))
    plan = planned.plan
    on_plan(plan)
    report = ConversionReport(display_name(model), plan)
    text = None if data is None else _read(model, data, valid)
    if isinstance(count, int) and text is None:
        raise ValueError(
            f"keep={count} chooses the layers to keep by measurement: got no data. Give data, or their numbers"
        )
    converted = planned.carry_out()
    if text is not None:
        with _timed(report, "measure the source"):
            score = _measure(model, text, _row_length(model), partial(progress, "measure the source"))
            report.metric, report.before = score.metric.name, score.value
            report.bytes_per_token = score.bytes_per_token
            report.data = text.describe_sample("valid", _row_length(model), VALID_BYTES)
        with _timed(report, "match"):
            rows = _rows(model, text, FIT_TOKENS, seed)
            planned.conversion.fit(model, converted, rows, progress)
        if isinstance(count, int):
            with _timed(report, "choose layers"):
                rows = _rows(model, text, KEEP_TOKENS, seed + 1)
                show = partial(progress, "choose layers")
                report.layer_losses = losses_by_layer(model, converted, rows, show)
                planned = _keep(planned, converted, layers_to_keep(report.layer_losses, count))
                converted, report.plan = planned.converted, planned.plan
        with _timed(report, "measure the conversion"):
            show = partial(progress, "measure the conversion")
            report.after = _measure(converted, text, _row_length(model), show).value  # on the same rows
    if seconds and model.predicts_next:  # an encoder has no decoding state
        for name, each in (("source", model), ("converted", converted)):
            with _timed(report, f"read long rows ({name})"):
                show = partial(progress, f"read long rows ({name})")
                report.costs[name] = reading_costs(each, seconds, on_progress=show)
    converted.report = report  # type: ignore[assignment]
    return converted


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
    """Return the model's metric on validation data, in rows of this number of tokens."""
    part = text.part("valid")
    total = min(VALID_BYTES, part.bytes) / part.bytes_per_token
    return evaluate(
        model, part, length, VALID_BYTES, on_progress=lambda count: progress(min(count / total, 1.0)), probe=False
    )


def _keep(planned: PlannedConversion, converted: Model, layers: tuple[int, ...]) -> PlannedConversion:
    """Return the conversion with some layers left as they are, and the trained new parts of the others."""
    conversion = replace(planned.conversion, keep=layers)  # type: ignore[call-arg]
    result = PlannedConversion.of(planned.source, conversion)
    model, old = result.carry_out(), planned.source.state_dict()
    names = model.state_dict().keys() - old.keys()
    model.load_state_dict({name: x for name, x in converted.state_dict().items() if name in names}, strict=False)
    return result
