"""Models for other data than text, built with the layers of a member for text."""

from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

from kinformer.core.discover import find_member
from kinformer.core.keyword_conditions import check_used
from kinformer.core.keywords import parse_keywords, signature
from kinformer.lab.data.data import Data
from kinformer.lab.data.resolve import DataSource
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice, find_member_function, parse_member, split_keywords, with_keywords
from kinformer.members.support.member_stack import format_stack


def lend_layers(name: str, texts: Iterable[str], source: DataSource) -> MemberChoice:
    """Return the named member, or a member for this kind of data that is built with its layers.

    The second member is called the host, such as `agent` for environments. It is returned if the named member does not
    read this kind of data itself.

    name: the member, or FILE.py:NAME.
    texts: keywords such as "depth=2"; keywords that the member does not have go to the host.
    source: the data; its kind determines the host.

    Errors: UserError for wrong keywords, and for a member in a user's file that does not read the data itself.
    """
    texts = tuple(texts)
    kind, function = source.kind, find_member_function(name)
    if kind is None or not kind.lends or _reads_it(function, kind):
        return parse_member(name, texts)
    host = find_member(kind.lends)
    with from_user(TypeError):
        member_texts, host_texts = split_keywords(function, host, texts)
    choice = parse_member(name, member_texts)
    if ".py:" in name:
        raise UserError(
            f"{name} cannot lend its layers to a model for this data, because its file is not run when that model is "
            f"loaded. Write a member in the file that builds the whole model, as the member {kind.lends} does"
        )
    with from_user(TypeError):
        keywords = parse_keywords(host, host_texts)
    every = {key: parameter.default for key, parameter in signature(function).parameters.items()}
    with from_user(ValueError):
        check_used(function.needs, choice.keywords, every | dict(choice.keywords))  # type: ignore[attr-defined]
    stack = format_stack(function, {**every, **choice.keywords})
    return MemberChoice(with_keywords(name, texts), host, {"stack": stack, **keywords}, name)


def _reads_it(function: Callable[..., Any], kind: type[Data]) -> bool:
    """True if the member builds a model that reads such data itself."""
    return getattr(get_type_hints(function).get("return"), "reads", None) in kind.serves
