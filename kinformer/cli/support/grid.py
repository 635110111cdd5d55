"""Grid of `kinformer compare`: the settings and keywords that are tried for each member."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kinformer.cli.support import option_checks
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.keywords import split
from kinformer.lab.errors import UserError

EXAMPLE = "lr=1e-3,3e-3"
SETTINGS: dict[str, Callable[[str], Any]] = {  # settings of a training that a grid may vary, and their types
    "lr": float,
    "batch": int,
    "length": int,
    "schedule": str,
    "warmup": option_checks.fraction_or_steps,
    "betas": lambda text: option_checks.betas(text.strip("()")),
    "eps": float,
    "clip": float,
    "decay": float,
    "accumulate": int,
    "precision": str,
}
FIXED = {
    "seed": "--seeds N trains each point with several seeds",
    "seeds": "--seeds N trains each point with several seeds",
    **dict.fromkeys(("steps", "minutes", "flops"), "every training of a comparison has the same budget"),
}


@dataclass(frozen=True)
class GridAxis:
    """One setting or keyword of a grid, with the values to try.

    name: its name, such as "lr" or "window".
    values: the values, as they are typed.
    """

    name: str
    values: tuple[str, ...]

    @property
    def is_setting(self) -> bool:
        """True for a setting of the training, and False for a keyword of the members."""
        return self.name in SETTINGS

    @property
    def typed(self) -> str:
        """The axis as a user types it after --grid."""
        return f"{self.name}={','.join(self.values)}"


@dataclass(frozen=True)
class GridPoint:
    """One point of a grid: a value of each setting and keyword that is tried.

    values: names and values, in the order of the axes; empty without a grid.
    """

    values: tuple[tuple[str, str], ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The values of the settings by name, in the types of `Settings`."""
        return {name: SETTINGS[name](text) for name, text in self.values if name in SETTINGS}

    @property
    def keywords(self) -> list[str]:
        """The keywords of the member, such as "window=64"."""
        return [f"{name}={text}" for name, text in self.values if name not in SETTINGS]

    @property
    def words(self) -> list[str]:
        """All values with their names, such as "lr=0.001"."""
        return [f"{name}={text}" for name, text in self.values]

    @property
    def record(self) -> dict[str, float | str]:
        """All values by name, numbers as numbers, for results.json."""
        return {name: text if (number := as_number(text)) is None else number for name, text in self.values}


@dataclass(frozen=True)
class SweepGrid:
    """The product of all axes; without axes it has a single point without values.

    axes: the settings and keywords that are tried.
    """

    axes: tuple[GridAxis, ...] = ()

    @property
    def points(self) -> list[GridPoint]:
        """All points, in the order of the axes; the last axis changes fastest."""
        pairs = [[(axis.name, value) for value in axis.values] for axis in self.axes]
        return [GridPoint(values) for values in product(*pairs)]

    @property
    def keyword_names(self) -> list[str]:
        """Names of the axes that are keywords of the members."""
        return [axis.name for axis in self.axes if not axis.is_setting]

    @property
    def record(self) -> dict[str, list[str]]:
        """The values by name, for comparison.json."""
        return {axis.name: list(axis.values) for axis in self.axes}


def parse_grid(grids: Iterable[str], lrs: str | None, given: Collection[str]) -> SweepGrid:
    """Parse the options --grid and --lrs of `kinformer compare`.

    grids: the values of --grid, such as "window=64,256". Values with commas have brackets, as in betas=(0.9,0.95),(0.9,
        0.98).
    lrs: the value of --lrs, which is another spelling of --grid lr=...; None without it.
    given: names of the options that the user has typed, such as "lr".

    Errors: UserError for values that cannot be read or are repeated, and for a setting that is given twice.
    """
    axes: list[GridAxis] = []
    for option, text in [
        *(("--lrs", f"lr={lrs}") for _ in [lrs] if lrs is not None),
        *(("--grid", text) for text in grids),
    ]:
        axis = _parse_axis(option, text)
        if axis.name in [other.name for other in axes]:
            raise UserError(f"got {axis.name} twice in --grid and --lrs, expected one list of values. Join the lists")
        if axis.name in given:
            raise UserError(
                f"got both --{axis.name} and {option if option == '--lrs' else f'--grid {axis.name}'}, expected only "
                "one of them"
            )
        axes.append(axis)
    return SweepGrid(tuple(axes))


def _parse_axis(option: str, text: str) -> GridAxis:
    name, equals, rest = (piece.strip() for piece in text.partition("="))
    values = [value for value in split(rest) if value]
    if not (name and equals and values):
        raise UserError(f"wrong {option}: got {text!r}, expected NAME=VALUE,VALUE, such as {EXAMPLE}")
    if name in FIXED:
        raise UserError(f"a grid cannot vary {name}: {FIXED[name]}. Leave out {option} {name}")
    read = [_read_value(option, name, value) for value in values]
    known = [value if (number := as_number(value)) is None else number for value in read]
    for place, value in enumerate(known):
        if value in known[:place]:
            raise UserError(f"{option} has the value {values[place]} of {name} twice. Give each value once")
    return GridAxis(name, tuple(read))


def _read_value(option: str, name: str, text: str) -> str:
    """The value in the form in which equal values have equal texts."""
    if name not in SETTINGS:
        return text
    try:
        value = SETTINGS[name](text)
    except (ValueError, UserError):
        value = None
    if value is None or (isinstance(value, float) and not (0 < value < math.inf or (name == "decay" and value == 0))):
        kind = {float: "numbers above 0", int: "whole numbers"}.get(SETTINGS[name], "values")  # type: ignore[call-overload]
        raise UserError(
            f"wrong {option}: got {text!r} for {name}, expected {kind} separated by commas, such as {EXAMPLE}"
        )
    return _shortest(value) if isinstance(value, float) else text if isinstance(value, tuple) else str(value)


def _shortest(value: float) -> str:
    """A number in as few digits as keep its value."""
    return short if float(short := f"{value:g}") == value else repr(value)


def as_number(text: str) -> float | None:
    """Return a value of a grid as a number; None if it is no finite number.

    text: the value, as it is typed.
    """
    try:
        number: float = int(text) if text.strip().lstrip("-").isdecimal() else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def check_keywords_exist(names: Sequence[str], keywords: dict[str, Collection[str]]) -> None:
    """Check that every member has the keywords of a grid.

    names: the keywords of the grid.
    keywords: the keywords of each member, by the title of the member.

    Errors: UserError that names the members with the keyword, or the nearest name if no member has it.
    """
    for name in names:
        having = [title for title, known in keywords.items() if name in known]
        lacking = [title for title in keywords if title not in having]
        if lacking and having:
            has = "has" if len(having) == 1 else "have"
            raise UserError(
                f"--grid {name}: {', '.join(lacking)} has no keyword {name!r}, but {', '.join(having)} {has} it. "
                f"Compare only members that have it, or leave out --grid {name}"
            )
        if lacking:
            every = {*SETTINGS, *(known for names_of in keywords.values() for known in names_of)}
            nearest = suggest_names(name, every, "; `kinformer show MEMBER` lists keywords")
            raise UserError(
                f"--grid {name}: no compared member has a keyword {name!r}, and there is no setting of that name"
                f"{nearest}"
            )
