"""The table, notes and commands that `kinformer advise` prints."""

import re

from rich.table import Table

from kinformer.cli.options import WIDTH
from kinformer.cli.support.console import plain_console
from kinformer.lab.advise.estimates import quality
from kinformer.lab.advise.ranking import BASELINE, Advice, Fit
from kinformer.lab.byte_units import size
from kinformer.pages.docstrings import doc


def print_advice(advice: Advice) -> None:
    """Print a table of the members that fit, then notes and the commands to try.

    advice: the ranked members (named models) for one task.
    """
    console = plain_console(width=None if plain_console().is_terminal else WIDTH)
    console.print(
        f"task {advice.task}, rows of {advice.length:,} tokens of {advice.data.name}, batch size "
        f"{advice.batch:,}, {size(advice.room)} of memory; members with the fewest multiplications come first"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("member", overflow="fold")
    baseline = BASELINE[advice.task]
    for heading in ("GFLOP per step", "memory", "parameters", "decoding state", f"speed / {baseline}", "bits per byte"):
        table.add_column(heading, justify="right")
    for fit in advice.fits:
        estimate = fit.estimate
        state = "none" if estimate.state_bytes is None else size(estimate.state_bytes)
        measured_bits = ", ".join(f"{value['mean']:.2f}" for value in quality(fit.name).values()) or "not measured"
        speed = "-" if fit.faster is None else f"{fit.faster[1]:.2f} at {fit.faster[0]:,} tokens"
        flops, parameters = f"{advice.batch * estimate.row_flops / 1e9:,.3g}", f"{estimate.parameters:,}"
        table.add_row(estimate.choice.text, flops, size(fit.process), parameters, state, speed, measured_bits)
    console.print(table)
    large = ", ".join(_name_with_size(fit, advice.room) for fit in advice.large)
    parts = {
        "Too large": [f"{large}."] if large else [],
        "Left out": [f"{name}: {why}" for name, why in advice.refused.items()],
        "Start with": [f"{fit.name}, {why}. {_reason_to_choose(fit)}".rstrip() for fit, why in advice.tried],
        "Not known": advice.unknown,
        "Commands to try": advice.commands,
    }
    for title, lines in parts.items():
        if lines:
            console.print(f"\n{title}:", style="bold")
        for line in lines:
            console.print(f"  {line}", soft_wrap=title == "Commands to try")


def _name_with_size(fit: Fit, room: int) -> str:
    """Return a member that is too large with its memory, and with the bytes of its weights if they alone do not fit."""
    weights = fit.estimate.weights
    alone = f" (its weights alone take {size(weights)})" if weights > room else ""
    return f"{fit.estimate.choice.text} {size(fit.process)}{alone}"


def _reason_to_choose(fit: Fit) -> str:
    """The sentence of a member's docstring that says when to choose it; "" if it has none."""
    docstring = doc(fit.estimate.choice.function)
    sentences = re.split(r"(?<=\.) ", " ".join([docstring.first, *docstring.prose]))
    return next((sentence for sentence in sentences if sentence.startswith(("Choose it", "The baseline"))), "")
