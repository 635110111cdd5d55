"""The command `kinformer advise`: recommend members for a task, a row length and an amount of memory."""

import json
from typing import Annotated, Literal

import typer

from kinformer.cli import options
from kinformer.cli.errors import print_warnings
from kinformer.lab.errors import from_user

AdviceTask = Literal["lm", "mask", "classify"]


def advise(
    *,
    task: Annotated[
        AdviceTask,
        typer.Option(
            help="Task of the model: lm (generate text), mask (fill in masked tokens) or classify (give each text a "
            "label)."
        ),
    ],
    data: options.Data,
    length: options.RowLength = options.LENGTH,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory that the training may use, such as 8GB; default: the free memory of --device."),
    ] = None,
    batch: options.RowBatch = options.BATCH,
    precision: options.Precision = options.PRECISION,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Recommend members (named models) for a task and a memory limit.

    \b
    Examples:
        # Members that can train on rows of 4,096 tokens within 8 GB
        kinformer advise --task lm --length 4096 --memory 8GB --data text=PATH
        # Members that fill in masked tokens, within the free memory
        kinformer advise --task mask --length 512 --data text=stdlib

    The table lists the members that fit into --memory at their default sizes, the one with the fewest multiplications
    first. Notes below the table say what is not known, such as a quality or a speed that was never measured. Rows
    longer than any that were measured are noted too. Commands to try the members follow. This command trains nothing.

    Memory and multiplications come from a table of the library, which holds the results of `kinformer cost` at two row
    lengths. Values at other lengths are interpolated or extrapolated. The order ignores quality, because little is
    known about which member learns best. The first printed command finds out on your data. It compares the baseline
    (gpt, bert or bert_classifier), the members with the best measured quality and speed, and the member with the fewest
    multiplications.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.console import plain_console

    with plain_console(stderr=True).status("reading the data ..."):  # prints nothing if stderr is no terminal
        from kinformer.cli.support.advice_table import print_advice
        from kinformer.cli.support.device_choice import parse_device
        from kinformer.cli.support.progress_bar import progress
        from kinformer.cli.support.training import prepare, refuse_kind
        from kinformer.lab.advise.ranking import members_for, memory_bytes, rank_members
        from kinformer.lab.data.resolve import resolve
        from kinformer.lab.member_choice import parse_member

        where = parse_device(device)
        memory_budget = memory_bytes(memory, where)
        able = members_for(task)
        with from_user(ValueError), print_warnings():
            source = resolve(data)
        refuse_kind(parse_member(able[0], ()), source)
        job = prepare(source, 1, None, device=device, batch=batch, length=length, precision=precision)
    with progress("estimating", len(able), "members") as on_progress:
        advice = rank_members(task, able, job.data, job.settings, data, memory_budget, on_progress, device)
    if as_json:
        print(json.dumps(advice.as_json(), indent=2))
    else:
        print_advice(advice)
