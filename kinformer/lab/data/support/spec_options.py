"""Specifications of data, KIND=PLACE,NAME=VALUE,...: split into their parts and checked.

It imports nothing heavy, so that a command can check its arguments before it begins.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.quote import quote, shorten


def words_of(spec: str, forms: Mapping[str, str]) -> tuple[str, str, dict[str, str]]:
    """Split a specification into its kind, its place, and the options NAME=VALUE.

    spec: the specification.
    forms: each kind of data, with its form on a command line.

    Errors: ValueError, in one line, for another form, an unknown kind, and an option that is given twice.
    """
    known = ", ".join(forms.values())
    kind, equals, rest = spec.partition("=")
    where, options = options_of(rest)
    if not equals and Path(spec).expanduser().exists():
        raise ValueError(f"the data {quote(spec)} is a path without its kind; write text={spec} for a text")
    if not equals or not where:
        text = "" if equals else f"text={shorten(spec, 80)} for a text, or "
        raise ValueError(f"the data {quote(spec)} does not have the form KIND=PLACE; write {text}{known}")
    if kind not in forms:
        raise ValueError(f"there is no kind of data {quote(kind)}{suggest_names(kind, forms)}; write {known}")
    return kind, where, options


def refuse_unknown(kind: str, options: Iterable[str], names: Iterable[str]) -> None:
    """Raise ValueError, with the nearest name, for an option that a kind of data does not have.

    kind: the kind of data, for the message.
    options: the options that are given.
    names: the options that the kind has.
    """
    names = tuple(names)
    for name in options:
        if name not in names:
            raise ValueError(f"{kind}= has no option {quote(name)}{suggest_names(name, names)}")


def options_of(text: str) -> tuple[str, dict[str, str]]:
    """Split `text` into the place, which may contain commas, and the options NAME=VALUE at its end."""
    options: dict[str, str] = {}
    while match := re.fullmatch(r"(.*),(\w+)=([^,]*)", text, re.DOTALL):
        text, name, value = match.groups()
        if name in options:
            raise ValueError(f"{name} is given twice in the data; give it once")
        options = {name: value, **options}
    return text, options
