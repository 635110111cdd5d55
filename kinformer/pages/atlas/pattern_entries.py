"""Entries of the playground: every pattern that can be written as text, with an example."""

from typing import Any

from kinformer.core.discover import modules, part_files
from kinformer.core.example import Example
from kinformer.core.pattern import Heads

HEADS = "Heads(Causal() & Band(left=4), Causal())"


def pattern_entries() -> list[dict[str, Any]]:
    """Return name, file, first sentence and an example for each pattern without tensors, sorted by name."""
    entries = {"Heads": {"file": "", "sentence": _first_line(Heads), "example": HEADS}}
    files = part_files("patterns")  # the page knows the patterns of the library alone
    for file, module in modules("patterns").items():
        for entry in module.EXAMPLES if file in files else ():
            pattern = Example.from_entry(entry).make()
            name = type(pattern).__name__
            if not pattern.tensors() and name not in entries:
                entries[name] = {"file": file, "sentence": _first_line(type(pattern)), "example": repr(pattern)}
    return [{"name": name, **entry} for name, entry in sorted(entries.items())]


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").partition("\n")[0]
