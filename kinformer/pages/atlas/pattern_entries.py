"""Entries of the playground: every pattern that can be written as text, with an example."""

from typing import Any

from kinformer.core.discover import modules, part_files
from kinformer.core.example import Example
from kinformer.core.pattern import Heads
from kinformer.pages.idea import all_ideas

HEADS = "Heads(Causal() & Band(left=4), Causal())"


def pattern_entries() -> list[dict[str, Any]]:
    """Return facts about each pattern without tensors, sorted by name.

    The facts are the name, the file, the first sentence, an example, and the names of the ideas about the pattern.
    """
    entries = {"Heads": {"file": "", "sentence": _first_line(Heads), "example": HEADS}}
    files = part_files("patterns")  # the page knows the patterns of the library alone
    for file, module in modules("patterns").items():
        for entry in module.EXAMPLES if file in files else ():
            pattern = Example.from_entry(entry).make()
            name = type(pattern).__name__
            if not pattern.tensors() and name not in entries:
                entries[name] = {"file": file, "sentence": _first_line(type(pattern)), "example": repr(pattern)}
    return [{"name": name, **entry, "ideas": _ideas(entry["file"])} for name, entry in sorted(entries.items())]


def _ideas(file: str) -> list[str]:
    return [idea.name for idea in all_ideas().values() if f"patterns/{file}" in idea.places]


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").partition("\n")[0].replace("`", "")
