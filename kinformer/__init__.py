"""The Transformer family as parts that compose.

Every public name is an attribute of this package, such as `kinformer.Softmax`, `kinformer.Causal` or `kinformer.gpt`.
Each name is imported from its file at its first use. `import kinformer` itself imports neither torch nor another
package, so the command line starts fast.
"""

import functools
import importlib
import sys
import types

from kinformer.core.public_names import CONTRACTS
from kinformer.core.quote import quote

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
        raise AttributeError(f"kinformer has no public name {quote(name)}{_suggestion(name)}")
    globals()[name] = value
    return value


@functools.cache
def _parts() -> dict[str, str]:
    """Return the file of every part and member by name; the files are searched once, at the first use of a part."""
    return _discover().part_names()


@functools.cache
def _plugin_parts() -> dict[str, object]:
    """Return the parts and members of installed plugins, imported at the first name that the library lacks."""
    return _discover().plugin_names()


def _discover() -> types.ModuleType:
    from kinformer.core import discover  # imported here to keep `import kinformer` fast

    return discover


def _suggestion(name: str) -> str:
    # imported here to keep `import kinformer` fast
    from kinformer.core.did_you_mean import ADVICE, suggest_names

    if name in ADVICE:
        return f"; {ADVICE[name]}"
    return suggest_names(name, __dir__(), "; dir(kinformer) lists them")


def __dir__() -> list[str]:
    return sorted({"__version__", *CONTRACTS, *_parts(), *_plugin_parts()})


class _Package(types.ModuleType):
    """Package in which a function such as `attend` is not replaced by the imported folder of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in CONTRACTS and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
