"""Names of values by sublayer: "3.ponder" is the value `ponder` of sublayer 3."""

from collections.abc import Mapping
from typing import Any


def add_prefix(place: str | int, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return `entries` with "place." before each name: {"ponder": x} at 3 becomes {"3.ponder": x}."""
    return {f"{place}.{key}": value for key, value in entries.items()}


def names_beneath(place: str | int, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that begin with "place.", without that prefix."""
    start = f"{place}."
    return tuple(name.removeprefix(start) for name in names if name.startswith(start))


def entries_under(place: str | int, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `entries` (values by name) for the sublayer with number `place`.

    Undotted names stay the same, names that begin with "place." lose that prefix, other names are left out.
    """
    start = f"{place}."
    plain = {key: value for key, value in entries.items() if "." not in key}
    return plain | {key.removeprefix(start): value for key, value in entries.items() if key.startswith(start)}
