"""Searches by name, as they stand on a command line: "exact", "hnsw", "ivf:lists=64,probes=4"."""

import inspect

from kinformer.core.discover import modules, parse_keywords
from kinformer.core.keywords import nearest
from kinformer.core.search import Search


def search_named(text: str) -> Search:
    """The search that a text names: a file of a folder `search`, then its numbers; ValueError in one line for none."""
    name, _, rest = text.partition(":")
    found = modules("search")
    if name not in found:
        raise ValueError(f"there is no search {name!r}{nearest(name, found, '')}; choose {', '.join(found)}")
    kind = next(
        one
        for one in vars(found[name]).values()
        if inspect.isclass(one) and issubclass(one, Search) and one.__module__ == found[name].__name__
    )
    try:
        return kind(**parse_keywords(kind, tuple(rest.split(",") if rest else ())))
    except TypeError as error:
        raise ValueError(f"{text!r} names no search: {error}") from error


def name_of(search: Search) -> str:
    """The text that names a search."""
    name = type(search).__module__.rpartition(".")[2]
    numbers = ",".join(f"{one}={value}" for one, value in vars(search).items() if value is not None)
    return f"{name}:{numbers}" if numbers else name
