"""The command `kinformer advise`: recommend members for a task, a row length and an amount of memory."""

import json
from typing import Annotated, Literal

import typer

from kinformer.cli import options
from kinformer.cli.errors import print_warnings
from kinformer.cli.support import option_checks
from kinformer.lab.errors import from_user

AdviceTask = Literal["lm", "mask", "classify"]


def advise(
    ctx: typer.Context,
    *,
    task: Annotated[
        AdviceTask,
        typer.Option(
            help="Task of the model: lm (generate text), mask (fill in masked tokens) or classify (give each text a "
            "label)."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            callback=option_checks.data,
            help="Data as KIND=PLACE, as for `kinformer train`; default: no data is read, and tokens are bytes.",
        ),
    ] = None,
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
        # Members with the best arena score or the lowest cost on rows of 8,192 tokens
        kinformer advise --task lm --length 8192
        # Members that can train on rows of 4,096 tokens of a text within 8 GB
        kinformer advise --task lm --length 4096 --memory 8GB --data text=PATH

    Each line on stdout is a command that trains a recommended member. Everything else is printed on stderr: a table of
    the members that fit into --memory at their default sizes, the reasons, and notes on facts that are not known. This
    command trains nothing. It times a step of each recommended member, so that the commands allow about 200 steps.

    The reach of a member that generates text is the number of tokens from an output back to the earliest token that can
    change it, as in `kinformer cost`. With --json, it is null without a known limit.

    Memory, operations and decoding states come from tables of the library, which hold the results of `kinformer cost`
    at a few row lengths. Values at other lengths are interpolated or extrapolated. Quality comes from results of
    `kinformer arena` in the package; the notes name members without results. The first member has the best mean bits
    per byte among members that no other dominates. The members with the fewest operations, the smallest decoding state
    and the least memory follow, if their bits per byte are at most 10% above gpt's. Members without a ranked score are
    recommended only if no member with one fits.

    No recommended member is dominated. A dominates B under three conditions. A needs at most as many operations, bytes
    of state and bytes of memory. No score of A is worse. At least one of these is better. Two scores differ if their
    95% intervals do not overlap. If no quality is known, as for mask and classify, the baseline (gpt, bert or
    bert_classifier) comes first, and members with the lowest costs follow.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.console import plain_console

    with plain_console(stderr=True).status("reading the data ..."):  # prints nothing if stderr is no terminal
        from kinformer.cli.support.advice_table import print_advice
        from kinformer.cli.support.device_choice import parse_device
        from kinformer.cli.support.progress_bar import progress
        from kinformer.cli.support.training import prepare, refuse_kind, refuse_length
        from kinformer.lab.advise.ranking import members_for, memory_bytes, rank_members
        from kinformer.lab.data.resolve import resolve
        from kinformer.lab.member_choice import parse_member
        from kinformer.lab.train.settings import Settings

        where = parse_device(device)
        memory_budget = memory_bytes(memory, where)
        able = members_for(task)
        dataset, settings = None, Settings(batch=batch, length=length, precision=precision)
        if data is not None:
            with from_user(ValueError), print_warnings():
                source = resolve(data)
            refuse_length(ctx, source.kind)
            refuse_kind(parse_member(able[0], ()), source)
            job = prepare(source, 1, None, device=device, batch=batch, length=length, precision=precision)
            dataset, settings = job.data, job.settings
    with progress("estimating", len(able), "members") as on_progress:
        advice = rank_members(task, able, dataset, settings, data, memory_budget, on_progress, device)
    if as_json:
        print(json.dumps(advice.as_json(), indent=2))
    else:
        print_advice(advice)
