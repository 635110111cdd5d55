"""From "text=stdlib", as it stands on a command line, to data."""

import inspect
from collections.abc import Callable
from typing import get_type_hints

from kinformer.core.discover import modules
from kinformer.lab.data.kind import Data, named
from kinformer.lab.data.support.spec_words import refuse_unknown, words_of


def read_spec(spec: str, **more: str) -> Data:
    """The data that "KIND=WHERE,NAME=VALUE,..." names, KIND being a file of kinformer/lab/data that has `read`.

    What stands behind WHERE, and `more`, goes to `read` by name, as text. Raises ValueError for a spec of another form
    or kind, an option that the kind has not, and whatever the kind's own `read` raises, one line each.
    """
    readers = {name: module for name, module in modules("data").items() if hasattr(module, "read")}
    kind, where, options = words_of(spec, {name: module.FORM for name, module in readers.items()})
    for name in more:
        if name in options:
            raise ValueError(f"{name} is given twice, by itself and in {spec!r}; give it once")
    read = readers[kind].read
    _refuse_unknown(kind, read, options | more)
    return named(read, kind)(where, **options, **more)


def kind_of(spec: str) -> type[Data] | None:
    """The kind of data that a spec names, before anything is read; None where it names none."""
    module = modules("data").get(spec.partition("=")[0])
    returned = get_type_hints(read).get("return") if (read := getattr(module, "read", None)) else None
    return returned if isinstance(returned, type) and issubclass(returned, Data) else None


def _refuse_unknown(kind: str, read: Callable[..., Data], options: dict[str, str]) -> None:
    parameters = list(inspect.signature(read).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    refuse_unknown(kind, options, (parameter.name for parameter in parameters))
