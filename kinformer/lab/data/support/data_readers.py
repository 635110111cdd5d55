"""Readers of data: the files of lab/data and plugins, one for each kind, and their forms."""

import types
import warnings

from kinformer.core.discover import modules
from kinformer.lab.data.data import Data


def data_readers() -> dict[str, types.ModuleType]:
    """Return every module of the kind `data` with a function `read`, by name.

    A module with `read` and without `FORM` is left out, with a warning of one line.
    """
    readers = {name: module for name, module in modules("data").items() if hasattr(module, "read")}
    for name in [name for name, module in readers.items() if not hasattr(module, "FORM")]:
        warnings.warn(f'the data plugin {name} is ignored: it has no FORM; add FORM = "{name}=PATH"', stacklevel=2)
        del readers[name]
    return readers


def form_of(reads: str) -> str:
    """Return the form on a command line of data for models that read `reads`."""
    serving = data_serving(reads)
    return "your own Batches" if serving is None else serving[1]


def data_serving(reads: str) -> tuple[type[Data], str] | None:
    """Return the kind of data made for models that read `reads`, with its form; None if there is none."""
    candidates = [module for module in data_readers().values() if reads in getattr(module, "SERVES", ())]
    # data that serves several kinds of models is made for none of them
    for module in sorted(candidates, key=lambda module: len(module.SERVES)):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Data) and value.__module__ == module.__name__:
                return value, module.FORM
    return None
