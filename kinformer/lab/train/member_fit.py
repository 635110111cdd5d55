"""Match of a member (a named model) and its data: keywords that the data determines, and a check."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kinformer.core.keyword_conditions import has_effect
from kinformer.core.keywords import signature
from kinformer.core.model import display_name
from kinformer.lab.data.data import Data
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import MemberChoice
from kinformer.lab.train.loop import open_training_stream
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.startup_decisions import Decisions


def fit_keywords(choice: MemberChoice, data: Data, sizes: Mapping[str, Any] = MappingProxyType({})) -> MemberChoice:
    """Return a member with the keywords that the data determines, such as the number of labels.

    choice: the member; its given keywords stay.
    data: the data.
    sizes: keywords that replace the data's.
    """
    takes = {name: parameter.default for name, parameter in signature(choice.function).parameters.items()}
    larger_sizes = {name: n for name, n in data.sizes.items() if name in takes and n > takes[name]}
    keywords = {name: sizes.get(name, value) for name, value in data.keywords.items()}
    decided = {name: value for name, value in {**larger_sizes, **keywords}.items() if name in takes}
    return replace(choice, keywords={**decided, **choice.keywords})


def fit_length(choice: MemberChoice, rows: int | None) -> MemberChoice:
    """Return a member whose learned positions suffice for rows of some length.

    Only the keyword `length` changes, and only if it is too small, has an effect and was not given.

    choice: the member; its given keywords stay.
    rows: tokens of the longest row; None for data without rows of tokens.
    """
    defaults = {name: parameter.default for name, parameter in signature(choice.function).parameters.items()}
    positions, every = defaults.get("length"), {**defaults, **choice.keywords}
    if rows is None or "length" in choice.keywords or not isinstance(positions, int) or positions >= rows:
        return choice
    if not has_effect("length", getattr(choice.function, "needs", {}), every):
        return choice
    return replace(choice, keywords={**choice.keywords, "length": rows})


def check_readable(name: str, model: Any, data: Data, settings: Settings) -> None:
    """Refuse data that the model does not read, or too little data; the UserError names the model.

    This check is fast. The training itself, or `decide`, tests whether the model can learn from the data.

    name: name of the model.
    model: the model.
    data: the data.
    settings: settings of the training.
    """
    try:
        open_training_stream(model, data, settings, Decisions())
    except ValueError as error:
        raise UserError(name_model(name, model, error)) from error


def name_model(name: str, model: Any, error: Exception) -> str:
    """Return the message of an error about a model, with the name of the model once.

    name: name of the model, such as "gpt(depth=2)".
    model: the model, or its class.
    error: the error; its message may begin with "this gpt", or contain it.
    """
    own, message = f"this {display_name(model)} ", str(error)
    if message.startswith(own):
        return f"{name} {message.removeprefix(own)}"
    return f"{name}: {message.replace(own, 'it ', 1)}"


def longest_row(data: Data, settings: Settings) -> int:
    """Return the number of tokens in the longest training row.

    data: the data.
    settings: settings with the length.
    """
    return data.longest_length(settings.length) or settings.length
