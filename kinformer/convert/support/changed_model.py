"""Models with changes: building them from a record, and the changes that conversions make."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from kinformer.core.change import Change
from kinformer.core.conversion import Conversion
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import MemberRecord, members, modules
from kinformer.core.keywords import check_keywords
from kinformer.core.model import Model, display_name
from kinformer.core.quote import quote
from kinformer.nn.attention import Attention

M = TypeVar("M", bound=Model)
FACTS = ("trained_length", "trained_on", "tokenizer", "foreign_ends", "headless", "labels", "columns", "folder")


def conversions() -> dict[str, type[Conversion]]:
    """Return the class of every recipe by the name of its file, sorted."""
    return {
        name: next(
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Conversion) and value.__module__ == module.__name__
        )
        for name, module in modules("convert").items()
    }


def build_changed(build: Callable[..., Any], keywords: Mapping[str, Any], changes: Iterable[Change]) -> Any:
    """Return a model of a member whose layers conversions have changed, with any weights.

    build: the member, or its `rebuild`.
    keywords: keywords of the member.
    changes: the conversions, in order.

    Errors: ValueError for a conversion that does not exist or does not fit.
    """
    model = build(**keywords)
    for change in changes:
        try:
            model = conversion_of(change).restructure(model)
        except LookupError as error:
            raise ValueError(f"cannot repeat the conversion {quote(change.name)}: {error}") from error
    return model


def conversion_of(change: Change) -> Conversion:
    """Return the conversion of a recorded change.

    change: the change, such as a config has it.

    Errors: ValueError, in one line, for an unknown name or option.
    """
    known = conversions()
    if change.name not in known:
        raise ValueError(f"there is no conversion {quote(change.name)}{suggest_names(change.name, known)}")
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in change.options.items()}
    try:
        check_keywords(known[change.name], options)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return known[change.name](**options)


def member_of(record: MemberRecord) -> Callable[..., Any]:
    """Return the function that builds the member of a record, with all of its keywords.

    record: the record of a model.

    Errors: ValueError for a member in a user's own file, which cannot be built again from its name.
    """
    function = members().get(record.name) if record.file is None else None
    if function is None:
        raise ValueError(
            f"cannot build {record.name} again with other keywords: it is no member of kinformer. Choose a conversion "
            "that changes its layers, such as a pattern"
        )
    return function.rebuild  # type: ignore[attr-defined]


def has_keyword(model: nn.Module, name: str) -> bool:
    """Return True if the model is of a member of the library that has this keyword.

    model: the model.
    name: the keyword.
    """
    record = getattr(model, "member", None)
    return isinstance(record, MemberRecord) and record.file is None and name in record.keywords


def with_keywords(model: Model, **changed: Any) -> Any:
    """Return a new model of the same member with other keywords and the same changes; its weights are new.

    model: the model, which stays as it is.
    changed: new values of keywords.
    """
    record: Any = model.member
    keywords = {**record.keywords, **changed}
    return copy_facts(model, build_changed(member_of(record), keywords, record.changes))


def copy_facts(model: Model, other: M) -> M:
    """Give another model the dtype, the tokenizer and the facts of the training of a model, and return it.

    model: the model.
    other: the other model, which is changed.
    """
    for name in FACTS:
        setattr(other, name, getattr(model, name))
    if "metric" in vars(model):  # a task may override the metric of the class
        other.metric = model.metric
    like = next(model.parameters())
    return other.to(like.device, like.dtype).train(model.training)


def record_change(model: M, conversion: Conversion) -> M:
    """Add a conversion to the record of a model whose layers it has changed, and return the model.

    A model without a record, which no member built, stays without one.

    model: the changed model.
    conversion: the conversion.
    """
    record = getattr(model, "member", None)
    if isinstance(record, MemberRecord):
        change = Change(conversion.recipe_name(), conversion.options)
        model.member = replace(record, changes=(*record.changes, change))  # type: ignore[assignment]
    return model


def attention_layers(model: Model) -> list[tuple[str, Attention]]:
    """Return the self-attention layers of a model from the bottom, each with its name in the model.

    model: the model.

    Errors: ValueError for a model without any.
    """
    layers = [(name, part) for name, part in model.named_modules() if isinstance(part, Attention) and not part.cross]
    if not layers:
        raise ValueError(f"this {display_name(model)} has no layer of self-attention to convert")
    return layers


def earlier_conversions(model: Model) -> str:
    """Return advice for a model whose layers conversions have changed already; "" for other models.

    model: the model.
    """
    record = getattr(model, "member", None)
    names = [change.name for change in record.changes] if isinstance(record, MemberRecord) else []
    return f" It was converted by {', '.join(names)} before: convert its source instead" if names else ""


def kept_layers(keep: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the numbers of the layers that a conversion leaves as they are.

    keep: the numbers, from 1 at the bottom. A number of layers must have been replaced by their numbers: `convert`
        chooses them by measurement.
    count: number of layers.

    Errors: ValueError for numbers without a layer, and for a number of layers.
    """
    if isinstance(keep, int):
        raise ValueError(
            f"keep={keep} chooses the layers to keep by measurement: got no data. Give data, or numbers such as "
            "keep=(3,7)"
        )
    check_layer_numbers("keep", keep, count)
    return keep


def check_layer_numbers(name: str, numbers: tuple[int, ...], count: int) -> None:
    """Raise ValueError for numbers without a layer.

    name: name of the option, for the message.
    numbers: numbers of layers, from 1.
    count: number of layers.
    """
    if wrong := [number for number in numbers if not 1 <= number <= count]:
        raise ValueError(f"{name} has the layer {wrong[0]}, expected numbers from 1 to {count}, one for each layer")
