"""`kinformer advise`: which members to try for a task, on rows of a length, within some memory."""

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kinformer.cli.errors import from_user
from kinformer.cli.options import BATCH, LENGTH, WIDTH, Batch, Data, Json, Length

if TYPE_CHECKING:
    from kinformer.cli.support.advice import Advice

Asked = Literal["lm", "mask", "classify"]


def advise(
    *,
    task: Annotated[Asked, typer.Option(help="Write text, fill in what is hidden, or tell kinds of text apart.")],
    data: Data,
    length: Length = LENGTH,
    memory: Annotated[
        str | None, typer.Option(help="What a training may take, such as 8GB; what is free here unless given.")
    ] = None,
    batch: Batch = BATCH,
    as_json: Json = False,
) -> None:
    """Say which members to try, what is not known of them, and the commands to try them.

    Members that fit into --memory, at their own sizes, those that multiply least first. Memory and multiplications are
    those that `kinformer cost` counts, from a table of two lengths; between and beyond these they are reckoned. Which
    member learns best is hardly known, so it orders nothing: the first command finds out on the data, of the plain
    member, of the best and the fastest that were measured beside it, and of the one that multiplies least. Nothing is
    trained. What is not known is said: quality and times that nobody measured, rows longer than any that were counted.
    """
    from rich.console import Console

    with Console(stderr=True).status("looking at the data ..."):  # nothing where that is no terminal
        from kinformer.cli.support.advice import able_to, advised, room
        from kinformer.cli.support.training import prepare, refuse_kind
        from kinformer.cli.support.wanted import wanted
        from kinformer.lab.data.resolve import resolve

        there = room(memory)
        able = able_to(task)
        with from_user(ValueError):
            source = resolve(data)
        refuse_kind(wanted(able[0], ()), source)
        job = prepare(source, 1, None, device="cpu", batch=batch, length=length)
    found = advised(task, able, job, source, there)
    if as_json:
        print(json.dumps(found.told(), indent=2))
    else:
        _print(found)


def _print(found: "Advice") -> None:
    from rich.console import Console
    from rich.table import Table

    from kinformer.cli.support.advice import BASELINE, reason
    from kinformer.cli.support.members import quality
    from kinformer.pages.units import size

    console = Console(width=None if Console().is_terminal else WIDTH, highlight=False, markup=False)
    console.print(
        f"{found.task} on rows of {found.length:,} tokens of {found.job.data.name}, batches of {found.batch:,}, "
        f"within {size(found.room)}: the fewest multiplications first"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("member", overflow="fold")
    beside = BASELINE[found.task]
    for heading in ("GFLOP a step", "memory", "parameters", "decoding state", f"speed / {beside}", "bits, measured"):
        table.add_column(heading, justify="right")
    for one in found.fits:
        its = one.taken
        state = "none" if its.state_bytes is None else size(its.state_bytes)
        seen = ", ".join(f"{value['mean']:.2f}" for value in quality(one.name).values()) or "never"
        speed = "-" if one.faster is None else f"{one.faster[1]:.2f} at {one.faster[0]:,}"
        cells = (
            f"{found.batch * its.row_flops / 1e9:,.3g}",
            size(one.process),
            f"{its.parameters:,}",
            state,
            speed,
            seen,
        )
        table.add_row(its.one.text, *cells)
    console.print(table)
    large = ", ".join(f"{one.taken.one.text} {size(one.process)}" for one in found.large)
    parts = {
        "Too large": [f"{large}."] if large else [],
        "Left out": [f"{name}: {why}" for name, why in found.refused.items()],
        "To begin with": [f"{one.name}, {why}. {reason(one)}".rstrip() for one, why in found.tried],
        "Not known": found.unknown,
        "To try": found.commands,
    }
    for title, lines in parts.items():
        if lines:
            console.print(f"\n{title}:", style="bold")
        for line in lines:
            console.print(f"  {line}", soft_wrap=title == "To try")
