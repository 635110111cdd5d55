"""Readers of data: one module for each kind of data, from lab/data or a plugin."""

import types

from kinformer.core.discover import modules
from kinformer.core.warn import warn
from kinformer.lab.data.data import Data


def data_readers() -> dict[str, types.ModuleType]:
    """Return by name all modules that read a kind of data, from lab/data and from plugins.

    Such a module has a function `read`. It is left out, with a warning of one line, if it does not define `FORM`, its
    form on a command line.
    """
    readers = {name: module for name, module in modules("data").items() if hasattr(module, "read")}
    for name in [name for name, module in readers.items() if not hasattr(module, "FORM")]:
        warn(f'the data plugin {name} is ignored: it has no FORM; add FORM = "{name}=PATH"')
        del readers[name]
    return readers


def form_of(reads: str) -> str:
    """Return how data is named on a command line, such as "text=PATH", for models that read `reads`."""
    serving = data_serving(reads)
    return "your own Batches" if serving is None else serving[1]


def data_serving(reads: str) -> tuple[type[Data], str] | None:
    """Return the kind of data for models that read `reads`, and how a command line names it.

    If several kinds fit, it is the one that fits the fewest kinds of models. None if no kind fits.
    """
    candidates = [module for module in data_readers().values() if reads in getattr(module, "SERVES", ())]
    # data that serves several kinds of models is made for none of them
    for module in sorted(candidates, key=lambda module: len(module.SERVES)):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Data) and value.__module__ == module.__name__:
                return value, module.FORM
    return None
