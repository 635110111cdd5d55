"""Parts of a kind by a text such as "ivf:lists=64": the name of a file, and keywords."""

import inspect
from typing import Any, TypeVar

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import modules
from kinformer.core.keywords import parse_keywords
from kinformer.core.quote import quote

T = TypeVar("T")


def part_named(folder: str, base: type[T], text: str) -> T:
    """Return the part for a text such as "exact" or "yarn:factor=4,length=4096".

    folder: the kind of parts, such as "search". The name in the text is the name of a file of this kind.
    base: the base class of the parts; its attribute `kind` is the word for it in error messages.
    text: the name of the part, with keywords of its class after a colon.

    Errors: ValueError, in one line, if the name, a keyword or a number is unknown.
    """
    name, _, numbers = text.partition(":")
    files, word = modules(folder), getattr(base, "kind", base.__name__)
    if name not in files:
        raise ValueError(f"there is no {word} {quote(name)}{suggest_names(name, files, '')}; choose {', '.join(files)}")
    part: Any = next(
        value
        for value in vars(files[name]).values()
        if inspect.isclass(value) and issubclass(value, base) and value.__module__ == files[name].__name__
    )
    try:
        return part(**parse_keywords(part, tuple(numbers.split(",") if numbers else ())))
    except TypeError as error:
        raise ValueError(f"{quote(text)} is not a {word}: {error}") from error


def format_part(part: object) -> str:
    """Return the text that `part_named` converts to this part.

    part: the part, an object whose attributes are its keywords.
    """
    name = type(part).__module__.rpartition(".")[2]
    numbers = ",".join(f"{keyword}={value}" for keyword, value in vars(part).items() if value is not None)
    return f"{name}:{numbers}" if numbers else name
