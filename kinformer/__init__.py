"""The Transformer family as parts that compose.

The public names live here, and each is imported from its file when it is first asked for: `import kinformer` brings in
neither torch nor anything else, so the command line answers at once.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinformer.attention import Attention
    from kinformer.core.bias import Bias, Plus
    from kinformer.core.cache import KV
    from kinformer.core.layer import Context, Layer, Out
    from kinformer.core.mechanism import Mechanism
    from kinformer.core.memory import Memory
    from kinformer.core.parts import Part, parts
    from kinformer.core.pattern import And, Heads, Not, Or, Pattern
    from kinformer.core.read import Read, mass, merge, weights
    from kinformer.core.state import detach, fork, reset, select
    from kinformer.discover import member
    from kinformer.execute import attend
    from kinformer.generation import generate
    from kinformer.train.checkpoint import load, save

__version__ = "0.1.0"

__all__ = [
    "KV",
    "And",
    "Attention",
    "Bias",
    "Context",
    "Heads",
    "Layer",
    "Mechanism",
    "Memory",
    "Not",
    "Or",
    "Out",
    "Part",
    "Pattern",
    "Plus",
    "Read",
    "__version__",
    "attend",
    "detach",
    "fork",
    "generate",
    "load",
    "mass",
    "member",
    "merge",
    "parts",
    "reset",
    "save",
    "select",
    "weights",
]

_FILES = {
    "attention": ("Attention",),
    "core.bias": ("Bias", "Plus"),
    "core.layer": ("Context", "Layer", "Out"),
    "core.mechanism": ("Mechanism",),
    "core.memory": ("Memory",),
    "core.parts": ("Part", "parts"),
    "core.pattern": ("And", "Heads", "Not", "Or", "Pattern"),
    "core.read": ("Read", "mass", "merge", "weights"),
    "core.cache": ("KV",),
    "core.state": ("detach", "fork", "reset", "select"),
    "discover": ("member",),
    "execute": ("attend",),
    "generation": ("generate",),
    "train.checkpoint": ("load", "save"),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _FILE_OF:
        raise AttributeError(f"kinformer has no public name {name!r}; dir(kinformer) lists them")
    value = getattr(importlib.import_module(f"kinformer.{_FILE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
