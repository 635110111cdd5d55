"""`kinformer advise`: which members to try for a task, on rows of a length, within some memory."""

import json
import re
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kinformer.cli.options import BATCH, LENGTH, WIDTH, Batch, Data, Json, Length

if TYPE_CHECKING:
    from kinformer.lab.advise.ranking import Advice, Fit

AdviceTask = Literal["lm", "mask", "classify"]


def advise(
    *,
    task: Annotated[AdviceTask, typer.Option(help="Write text, fill in what is hidden, or tell kinds of text apart.")],
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
        from kinformer.cli.support.progress_bar import progress
        from kinformer.cli.support.training import prepare, refuse_kind
        from kinformer.lab.advise.ranking import members_for, memory_bytes, rank_members
        from kinformer.lab.member_choice import parse_member

        room = memory_bytes(memory)
        able = members_for(task)
        refuse_kind(parse_member(able[0], ()), data)
        job = prepare(data, 1, None, device="cpu", batch=batch, length=length)
    with progress("asking", len(able), "members") as hear:
        advice = rank_members(task, able, job.data, job.settings, data, room, hear)
    if as_json:
        print(json.dumps(advice.as_json(), indent=2))
    else:
        _print(advice)


def _print(advice: "Advice") -> None:
    from rich.console import Console
    from rich.table import Table

    from kinformer.lab.advise.estimates import quality
    from kinformer.lab.advise.ranking import BASELINE
    from kinformer.lab.units import size

    console = Console(width=None if Console().is_terminal else WIDTH, highlight=False, markup=False)
    console.print(
        f"{advice.task} on rows of {advice.length:,} tokens of {advice.data.name}, batches of {advice.batch:,}, "
        f"within {size(advice.room)}: the fewest multiplications first"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("member", overflow="fold")
    baseline = BASELINE[advice.task]
    for heading in ("GFLOP a step", "memory", "parameters", "decoding state", f"speed / {baseline}", "bits, measured"):
        table.add_column(heading, justify="right")
    for fit in advice.fits:
        estimate = fit.estimate
        state = "none" if estimate.state_bytes is None else size(estimate.state_bytes)
        measured_bits = ", ".join(f"{value['mean']:.2f}" for value in quality(fit.name).values()) or "never"
        speed = "-" if fit.faster is None else f"{fit.faster[1]:.2f} at {fit.faster[0]:,}"
        cells = (
            f"{advice.batch * estimate.row_flops / 1e9:,.3g}",
            size(fit.process),
            f"{estimate.parameters:,}",
            state,
            speed,
            measured_bits,
        )
        table.add_row(estimate.choice.text, *cells)
    console.print(table)
    large = ", ".join(f"{fit.estimate.choice.text} {size(fit.process)}" for fit in advice.large)
    parts = {
        "Too large": [f"{large}."] if large else [],
        "Left out": [f"{name}: {why}" for name, why in advice.refused.items()],
        "To begin with": [f"{fit.name}, {why}. {_reason_to_choose(fit)}".rstrip() for fit, why in advice.tried],
        "Not known": advice.unknown,
        "To try": advice.commands,
    }
    for title, lines in parts.items():
        if lines:
            console.print(f"\n{title}:", style="bold")
        for line in lines:
            console.print(f"  {line}", soft_wrap=title == "To try")


def _reason_to_choose(fit: "Fit") -> str:
    """What a member says of when to choose it."""
    from kinformer.cli.support.docstrings import doc

    docstring = doc(fit.estimate.choice.function)
    sentences = re.split(r"(?<=\.) ", " ".join([docstring.first, *docstring.prose]))
    return next((sentence for sentence in sentences if sentence.startswith(("Choose it", "The baseline"))), "")
