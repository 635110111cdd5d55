"""The Transformer family as parts that compose.

Every public name is here: `kinformer.Softmax`, `kinformer.Causal`, `kinformer.gpt`. A name is imported from its file at
its first use: `import kinformer` imports neither torch nor anything else, so the command line answers at once.
"""

import functools
import importlib
import sys
import types

from kinformer.core.public_names import CONTRACTS

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "__all__":
        return __dir__()
    if name.startswith("_"):
        raise AttributeError(f"module 'kinformer' has no attribute {name!r}")
    file = CONTRACTS.get(name) or _parts().get(name)
    if file is not None:
        value = getattr(importlib.import_module(f"kinformer.{file}"), name)
    elif name in _plugin_parts():
        value = _plugin_parts()[name]
    else:
        raise AttributeError(f"kinformer has no public name {name!r}{_suggestion(name)}")
    globals()[name] = value
    return value


@functools.cache
def _parts() -> dict[str, str]:
    """The file of every part and member by name; the files are read once, at the first use of a part."""
    return _discover().part_names()


@functools.cache
def _plugin_parts() -> dict[str, object]:
    """The parts and members of installed plugins, which are imported at the first name that the library lacks."""
    return _discover().plugin_names()


def _discover() -> types.ModuleType:
    from kinformer.core import discover  # `import kinformer` need not wait for it

    return discover


def _suggestion(name: str) -> str:
    from kinformer.core.did_you_mean import suggest_names  # as above

    return suggest_names(name, __dir__(), "; dir(kinformer) lists them")


def __dir__() -> list[str]:
    return sorted({"__version__", *CONTRACTS, *_parts(), *_plugin_parts()})


class _Package(types.ModuleType):
    """A package whose verbs stay in sight: an imported folder `attend` does not hide the function of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in CONTRACTS and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
