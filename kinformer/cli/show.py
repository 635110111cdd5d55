"""`kinformer show NAME`: one part or member, with its patterns drawn."""

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Annotated, Any

import typer

from kinformer.cli.errors import UserError, from_user
from kinformer.cli.parts import named
from kinformer.cli.wanted import member_named
from kinformer.discover import Origin, kinds, modules
from kinformer.keywords import describe, nearest, signature

LENGTH, MOST = 24, 5


def show(
    name: Annotated[str, typer.Argument(help="A part or member, as `kinformer list` names it; or file.py:function.")],
    length: Annotated[int, typer.Option(help="How many positions to draw.", min=1, max=200)] = LENGTH,
) -> None:
    """Show a part or member, with its patterns drawn.

    Docstring, signature, and for each pattern a picture of who reads whom.
    """
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False, markup=False)
    for heading, objects, examples in _found(name):
        console.print(heading, style="bold")
        for title, one in objects:
            console.print(f"\n{_signed(title, one)}", style="bold cyan")
            console.print(_indented(inspect.getdoc(one) or ""))
        for label, pattern in _patterns(objects, examples):
            console.print(f"\n{label}: a line is a query, a column is a key, from 0 to {length - 1}")
            console.print(_indented(pattern.show(length)))
        console.print()


def _found(name: str) -> Iterator[tuple[str, list[tuple[str, Any]], tuple[Any, ...]]]:
    """(heading, objects, examples) of everything that has the name: a file, or a class or function in one."""
    if ".py:" in name or name.endswith(".py"):
        yield name, [(name.rpartition(":")[2], member_named(name))], ()
        return
    places: dict[str, str] = {}
    nothing = True
    for kind in kinds():
        with from_user(ImportError):
            found = modules(kind)
        for file, module in found.items():
            objects = _matching(name, file, module)
            places[f"{kind}/{file}"] = _told(module)
            if objects:
                nothing = False
                yield f"{kind}/{file}", objects, getattr(module, "EXAMPLES", ())
    if nothing:
        raise UserError(f"there is no part or member {name!r}{_advice(name, places)}")


def _told(module: ModuleType) -> str:
    """Of the docstrings of a module, the first sentences and the sources: where the name of an idea stands."""
    texts = [module.__doc__ or "", *(inspect.getdoc(one) or "" for _, one in named(module))]
    return " ".join(f"{text.partition('.')[0]} {text.partition('Source:')[2]}" for text in texts)


def _advice(name: str, places: dict[str, str]) -> str:
    """Where the name stands, or else the nearest name that `kinformer list` shows."""
    found = [place for place, text in places.items() if re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE)]
    if found:
        return f"; its name stands in {', '.join(found[:MOST])}"
    return nearest(name.lower(), {place.partition("/")[2] for place in places})


def _matching(name: str, file: str, module: ModuleType) -> list[tuple[str, Any]]:
    return [(title, one) for title, one in named(module) if name in (file, title)]


def _signed(title: str, one: Any) -> str:
    if not isinstance(getattr(one, "origin", None), Origin):
        return f"{title}{_plain(one)}"
    lines = [f"    {key}: {describe(p.annotation)} = {p.default!r}," for key, p in signature(one).parameters.items()]
    return "\n".join([f"{title}(", *lines, ")"])


def _plain(one: Any) -> str:
    try:
        return str(inspect.signature(one))
    except (TypeError, ValueError):
        return ""


def _patterns(objects: list[tuple[str, Any]], examples: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """The patterns to draw: a pattern's own examples, or those inside what a member builds."""
    from kinformer.core.pattern import Pattern

    for example in examples:
        if isinstance(example, Pattern) and any(isinstance(example, one) for _, one in objects):
            yield repr(example), example
    for _, one in objects:
        if isinstance(getattr(one, "origin", None), Origin):
            yield from _labelled(one())


def _labelled(model: Any) -> Iterator[tuple[str, Any]]:
    for pattern, layers in inside(model).items():
        yield f"{pattern!r} in {layers} place{'s' if layers > 1 else ''}", pattern


def inside(model: Any) -> dict[Any, int]:
    """The patterns that a module's parts hold, and in how many places."""
    from kinformer.core.pattern import Pattern

    count: dict[Any, int] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Pattern):
                count[value] = count.get(value, 0) + 1
    return count


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())
