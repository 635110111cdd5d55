"""Match of a member (a named model) and its data: keywords that the data determines, and a check."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kinformer.core.keywords import signature
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
        raise UserError(f"{name}: {error}") from error


def longest_row(data: Data, settings: Settings) -> int:
    """Return the number of tokens in the longest training row.

    data: the data.
    settings: settings with the length.
    """
    return data.longest_length(settings.length) or settings.length
