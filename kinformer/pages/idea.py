"""Ideas: one Markdown file per mechanism or group of mechanisms, with a worked example and questions."""

import functools
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "ideas"
FRONT = re.compile(r"\+\+\+\n(?P<table>.*?)\n\+\+\+\n(?P<text>.*)", re.DOTALL)
HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
SECTIONS = (
    "Problem",
    "Difference from softmax attention",
    "Picture",
    "Worked example",
    "Why",
    "Cost",
    "What it loses",
    "Self-test",
    "Answers",
    "Sources",
)
EXAMPLE_NOTE = "The eight tokens are: the cat sat and the dog sat too. They are numbered from 0 to 7."
LENGTHS = (8, 1_024, 65_536)  # tokens for which the costs are listed
FUNCTIONS = {"log2": math.log2, "sqrt": math.sqrt, "ceil": math.ceil, "min": min, "max": max}


@dataclass(frozen=True)
class CostFormulas:
    """Cost of a mechanism by the number of tokens, as formulas of L.

    unit: the thing that is counted, such as "scores per query".
    mechanism: the formula of the mechanism, in Python, with L for the number of tokens.
    softmax: the formula of causal or full softmax attention.
    where: the sizes that the formula assumes, such as "4 rounds, chunks of 64".
    layers: number of layers until all positions are connected, and why.
    """

    unit: str
    mechanism: str
    softmax: str
    where: str
    layers: str

    def texts(self) -> Iterator[tuple[str, str, str]]:
        """Yield the number of tokens, the cost of the mechanism and the cost of softmax attention, as text."""
        for length, *costs in self.values():
            mechanism, softmax = (f"{cost:,.0f}" if cost == round(cost) else f"{cost:,.3g}" for cost in costs)
            yield f"{length:,}", mechanism, softmax

    def values(self) -> Iterator[tuple[int, float, float]]:
        """Yield the number of tokens, the cost of the mechanism and the cost of softmax attention."""
        for length in LENGTHS:
            names = {**FUNCTIONS, "L": length, "__builtins__": {}}
            yield length, eval(self.mechanism, names), eval(self.softmax, names)


@dataclass(frozen=True)
class Idea:
    """The page of a mechanism: its equation, reasons, cost and losses.

    name: name of its file, such as "lsh".
    title: heading of the page, such as "LSH attention".
    names: further names that papers use for it.
    places: files of members and parts that implement it, such as "mechanisms/lsh"; the most important first.
    rows: numbers of its mechanisms; every mechanism of the family has a number.
    pattern: an expression whose picture is drawn, or "".
    figures: names of files in `pages/figures` that are drawn.
    cost: its cost by the number of tokens.
    before: names of ideas to read before this one.
    compare: names of ideas that solve the same problem in another way.
    commands: commands that run it.
    sections: text of each section, in Markdown, by its heading.
    """

    name: str
    title: str
    names: tuple[str, ...]
    places: tuple[str, ...]
    rows: tuple[int, ...]
    pattern: str
    figures: tuple[str, ...]
    cost: CostFormulas
    before: tuple[str, ...]
    compare: tuple[str, ...]
    commands: tuple[str, ...]
    sections: dict[str, str]

    @property
    def summary(self) -> str:
        """The problem that it solves, in one sentence."""
        return self.sections["Problem"].split("\n\n")[0].replace("\n", " ")


def load_idea(path: Path) -> Idea:
    """Read the page of an idea.

    path: the Markdown file: a TOML table between two lines "+++", then the sections.

    Errors: ValueError in one line for a file in another form.
    """
    match = FRONT.fullmatch(path.read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f"{path.name} does not begin with a table between two lines '+++'")
    table: dict[str, Any] = tomllib.loads(match["table"])
    pieces = HEADING.split(match["text"])
    sections = {title.strip(): text.strip("\n") for title, text in zip(pieces[1::2], pieces[2::2], strict=True)}
    if tuple(sections) != SECTIONS:
        raise ValueError(f"{path.name} has the sections {tuple(sections)}; write {SECTIONS}")
    lists = {
        key: tuple(table.pop(key, ()))
        for key in ("names", "places", "rows", "figures", "before", "compare", "commands")
    }
    cost, title, pattern = CostFormulas(**table.pop("cost")), table.pop("title"), table.pop("pattern", "")
    if table:
        raise ValueError(f"{path.name} has unknown fields: {', '.join(table)}")
    return Idea(path.stem, title, pattern=pattern, cost=cost, sections=sections, **lists)


def followers(idea: Idea) -> list[str]:
    """Return the names of the ideas that build on an idea.

    idea: the idea.
    """
    return [other.name for other in all_ideas().values() if idea.name in other.before]


def alternatives(idea: Idea) -> list[str]:
    """Return the names of the ideas to compare an idea with: those that it names, and those that name it.

    idea: the idea.
    """
    others = (other.name for other in all_ideas().values() if idea.name in other.compare)
    return list(dict.fromkeys([*idea.compare, *others]))


@functools.cache
def all_ideas() -> dict[str, Idea]:
    """Return every idea by its name, in the order of the names; cached for the whole command."""
    return {path.stem: load_idea(path) for path in sorted(FOLDER.glob("*.md"))}


def find_idea(words: str) -> Idea | None:
    """Return the idea that some words name; None if there is none.

    words: its name, its title or another of its names, in any case. A word "attention" at the end does not count, and
        neither do brackets of a title, so "factorised attention" is "Factorised attention (Sparse Transformer)".
    """
    plain = _plain(words)
    names = {
        idea.name: [_plain(name) for name in (idea.name, idea.title, *idea.names)] for idea in all_ideas().values()
    }
    exact = (name for name, spelled in names.items() if plain in spelled)
    short = (name for name, spelled in names.items() if plain.removesuffix(" attention") in map(_shorten, spelled))
    name = next(exact, None) or next(short, None)
    return all_ideas()[name] if name else None


def ideas_of(place: str) -> list[Idea]:
    """Return the ideas that a member or a part belongs to, sorted by its index in their `places`.

    place: kind and name of a file, such as "mechanisms/lsh".
    """
    ideas = [idea for idea in all_ideas().values() if place in idea.places]
    return sorted(ideas, key=lambda idea: idea.places.index(place))


def _plain(words: str) -> str:
    return " ".join(re.sub(r"[_\-/]", " ", words).lower().split())


def _shorten(name: str) -> str:
    return re.sub(r" ?\(.*\)", "", name).removesuffix(" attention")
