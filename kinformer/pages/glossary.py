"""Glossary: terms that a PyTorch user may not know, each with a definition in one sentence."""

import functools
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Term(NamedTuple):
    """A term of the glossary.

    says: the definition, in one sentence.
    see: files of parts and members that show it, such as "patterns/tokens".
    """

    says: str
    see: tuple[str, ...] = ()


@functools.cache
def all_terms() -> dict[str, Term]:
    """Return every term by its name, in alphabetical order."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    terms = {name: Term(table["says"], tuple(table.get("see", ()))) for name, table in tables.items()}
    return dict(sorted(terms.items(), key=lambda pair: pair[0].lower()))


def glossary_page(link: Callable[[str], str] = "`{}`".format) -> str:
    """Return the glossary as a page in Markdown, with a heading for each letter and each term.

    link: function that returns the Markdown of a place such as "patterns/tokens"; its name by default.
    """
    intro = (
        "Terms of this documentation, with one sentence each. `kinformer show words` prints them. "
        "`kinformer show NAME` explains the parts that stand after a term."
    )
    blocks = ["# Glossary", intro]
    letter = ""
    for name, term in all_terms().items():
        if name[0].upper() != letter:
            letter = name[0].upper()
            blocks.append(f"## {letter}")
        blocks += [f"### {name}", term.says]
        if term.see:
            blocks.append(f"See {', '.join(map(link, term.see))}.")
    return "\n\n".join(blocks) + "\n"
