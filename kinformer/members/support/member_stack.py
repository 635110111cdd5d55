"""Member stacks: the layers of a language-model member, used inside another kind of model."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import members
from kinformer.core.keyword_conditions import check_used
from kinformer.core.keywords import name_of, parse_keywords, signature, split
from kinformer.models.lm import LM


def parse_stack(text: str) -> LM:
    """Build the language model that a text such as "gtrxl(d=64, depth=2)" describes.

    The caller is a model that uses its body, position and penalties, such as `agent`. Files of users are not allowed,
    because such texts are stored in checkpoints, and loading a checkpoint must not run code from a file.

    text: name of a member, with keywords in brackets.

    Errors: ValueError if the name is not a member of the library or of a plugin, or if a keyword is wrong. ValueError
    also if the member is not a plain language model.
    """
    match = re.fullmatch(r"\s*(?P<name>[^()=,\s]+)\s*(\((?P<words>.*)\))?\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(f"stack={text!r} is not a member; write gpt, or gpt(depth=2, heads=4)")
    known_members, name = members(), match["name"]
    if name not in known_members:
        advice = suggest_names(name, known_members, "; `kinformer list members` shows all members")
        raise ValueError(f"stack={text!r} names no member of the library{advice}")
    try:
        keywords = parse_keywords(known_members[name], [word for word in split(match["words"] or "") if word])
        model = _build(known_members[name], keywords)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if type(model) is not LM:
        kind = type(model).__name__
        raise ValueError(f"stack={name!r} makes the model {kind}; give a plain language model, such as gpt")
    return model


def _build(function: Any, keywords: Mapping[str, Any]) -> Any:
    """Build a model from keywords of a record, without refusing defaults that have no effect."""
    every = {key: parameter.default for key, parameter in signature(function).parameters.items()}
    changed = [key for key, value in keywords.items() if value != every[key]]
    check_used(function.needs, changed, {**every, **keywords})
    return function.rebuild(**keywords)


def format_stack(function: Callable[..., Any], keywords: Mapping[str, Any]) -> str:
    """Return a member and its keywords as the text that `parse_stack` reads, such as "gtrxl(d=64)".

    function: the member function.
    keywords: its keywords.
    """
    words = ", ".join(f"{name}={value}" for name, value in keywords.items())
    return f"{name_of(function)}({words})" if words else name_of(function)
