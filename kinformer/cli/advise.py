"""`kinformer advise`: which members to try for a task, on rows of a length, within some memory."""

import json
from typing import Annotated, Literal

import typer

from kinformer.cli.errors import print_warnings
from kinformer.cli.options import BATCH, LENGTH, Batch, Data, Json, Length
from kinformer.lab.errors import from_user

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
    # imported here, so that --help and early refusals need not wait for torch or rich
    from rich.console import Console

    with Console(stderr=True).status("looking at the data ..."):  # nothing where that is no terminal
        from kinformer.cli.support.advice_table import print_advice
        from kinformer.cli.support.progress_bar import progress
        from kinformer.cli.support.training import prepare, refuse_kind
        from kinformer.lab.advise.ranking import members_for, memory_bytes, rank_members
        from kinformer.lab.data.resolve import resolve
        from kinformer.lab.member_choice import parse_member

        memory_budget = memory_bytes(memory)
        able = members_for(task)
        with from_user(ValueError), print_warnings():
            source = resolve(data)
        refuse_kind(parse_member(able[0], ()), source)
        job = prepare(source, 1, None, device="cpu", batch=batch, length=length)
    with progress("asking", len(able), "members") as on_progress:
        advice = rank_members(task, able, job.data, job.settings, data, memory_budget, on_progress)
    if as_json:
        print(json.dumps(advice.as_json(), indent=2))
    else:
        print_advice(advice)
