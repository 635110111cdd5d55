"""The table, reasons, notes and commands that `kinformer advise` prints."""

import re

from rich.table import Table

from kinformer.cli.options import WIDTH
from kinformer.cli.support.console import plain_console
from kinformer.lab.advise.arena_scores import BITS, ArenaScores
from kinformer.lab.advise.fit import Fit
from kinformer.lab.advise.ranking import BASELINE, Advice
from kinformer.lab.advise.recommendation import Recommendation
from kinformer.lab.byte_units import size
from kinformer.pages.docstrings import doc


def print_advice(advice: Advice) -> None:
    """Print a table, reasons and notes on stderr, and the commands on stdout.

    advice: the recommended members (named models) for one task.
    """
    console = plain_console(stderr=True, width=None if plain_console(stderr=True).is_terminal else WIDTH)
    of_data = "" if advice.data is None else f" of {advice.data}"
    console.print(
        f"task {advice.task}, rows of {advice.length:,} tokens{of_data}, batch size {advice.batch:,}, "
        f"{size(advice.room)} of memory; recommended members first, then by operations"
    )
    console.print(_table(advice))
    large = ", ".join(_name_with_size(fit, advice.room) for fit in advice.large)
    parts = {
        "Too large": [f"{large}."] if large else [],
        "Left out": [f"{name}: {why}" for name, why in advice.refused.items()],
        "Recommended": [_reasons(choice) for choice in advice.chosen],
        "Notes": advice.notes,
        "Compare them": [] if advice.comparison is None else [advice.comparison],
    }
    for title, lines in parts.items():
        if lines:
            console.print(f"\n{title}:", style="bold")
        for line in lines:
            console.print(f"  {line}", soft_wrap=title == "Compare them")
    if console.is_terminal:
        console.print("\nTrain them:", style="bold")
    for command in advice.commands:
        print(command)


def _table(advice: Advice) -> Table:
    """Return the table of the members that fit."""
    table = Table(box=None, pad_edge=False)
    table.add_column("member", overflow="fold")
    texts = [task for task in advice.tasks if task.metric == BITS]
    headings = [f"{BITS} ({task.name})" for task in texts]
    headings += ["reach"] if advice.task == "lm" else []
    headings += ["GFLOP per step", "memory", "parameters", "decoding state", f"speed / {BASELINE[advice.task]}"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for fit in advice.fits:
        estimate = fit.estimate
        state = "none" if estimate.state_bytes is None else size(estimate.state_bytes)
        speed = "-" if fit.faster is None else f"{fit.faster[1]:.2f} at {fit.faster[0]:,} tokens"
        flops, parameters = f"{advice.batch * estimate.row_flops / 1e9:,.3g}", f"{estimate.parameters:,}"
        bits = [_score(fit, task) for task in texts]
        reach = [("no known limit" if fit.reach is None else f"{fit.reach:,}")] if advice.task == "lm" else []
        table.add_row(estimate.choice.text, *bits, *reach, flops, size(fit.process), parameters, state, speed)
    return table


def _score(fit: Fit, task: ArenaScores) -> str:
    score = task.members.get(fit.name)
    if score is None:
        return "not measured"
    return score.text if score.not_compared is None else f"{score.text}, {score.not_compared}"


def _name_with_size(fit: Fit, room: int) -> str:
    """Return a member that is too large with its memory, and with the bytes of its weights if they alone do not fit."""
    weights = fit.estimate.weights
    alone = f" (its weights alone take {size(weights)})" if weights > room else ""
    return f"{fit.estimate.choice.text} {size(fit.process)}{alone}"


def _reasons(choice: Recommendation) -> str:
    """The reason for a member, and the sentence of its docstring that says when to choose it if it has one."""
    docstring = doc(choice.fit.estimate.choice.function)
    sentences = re.split(r"(?<=\.) ", " ".join([docstring.first, *docstring.prose]))
    advised = next((sentence for sentence in sentences if sentence.startswith(("Choose it", "The baseline"))), "")
    return f"{choice.fit.name}: {choice.reason} {advised}".rstrip()
