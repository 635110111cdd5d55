"""Lineage: the parents of each member, and the change that its paper makes to them."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_suffix(".toml")


class Descent(NamedTuple):
    """Descent of a member.

    family: the group of members on the map, such as "memory".
    parents: members that its paper extends, or takes its base from.
    change: the change that the paper makes to them, as a sentence.
    """

    family: str
    parents: tuple[str, ...]
    change: str


@cache
def lineage() -> Mapping[str, Descent]:
    """Return the descent of every member by name, in the order of the table `lineage.toml`."""
    tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Descent(row["family"], tuple(row["parents"]), row["change"]) for name, row in tables.items()}


def children_of(name: str) -> list[str]:
    """Return the members that have a member as a parent, in the order of the table.

    name: the member.
    """
    return [child for child, descent in lineage().items() if name in descent.parents]


def ancestors_of(name: str) -> set[str]:
    """Return the parents of a member, their parents, and so on.

    name: the member.
    """
    above: set[str] = set()
    names = list(lineage()[name].parents)
    while names:
        parent = names.pop()
        if parent not in above:
            above.add(parent)
            names += lineage()[parent].parents
    return above


def descendants_of(name: str) -> set[str]:
    """Return the children of a member, their children, and so on.

    name: the member.
    """
    return {other for other in lineage() if name in ancestors_of(other)}
