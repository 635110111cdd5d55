"""`kinformer compare MEMBER ...`: members side by side on the same data, under the same budget."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from kinformer.cli import options
from kinformer.cli.errors import print_warnings, refuse_useless
from kinformer.cli.support import option_checks
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import parse_member_text

SEEDS = 1000  # trainings of each member, at most


def compare(
    ctx: typer.Context,
    members: Annotated[
        list[str],
        typer.Argument(
            callback=option_checks.members, help="Members; keywords in brackets: gpt 'gpt(depth=2, heads=4)'."
        ),
    ],
    *,
    data: options.Data,
    minutes: options.Minutes = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps of each, instead of --minutes.")] = None,
    flops: Annotated[float | None, typer.Option(help="Additions and multiplications of each, such as 1e13.")] = None,
    out: Annotated[Path, typer.Option(callback=option_checks.folder, help=options.OUT)],
    batch: options.Batch = options.BATCH,
    length: options.Length = options.LENGTH,
    lr: options.Rate = None,
    lrs: Annotated[str | None, typer.Option(help="Rates to try, as 1e-3,3e-3; each member has its own best.")] = None,
    match: Annotated[
        Literal["parameters"] | None, typer.Option(help="Bring all to the first one's size, by d or depth.")
    ] = None,
    seed: options.Seed = options.SEED,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds to train each member with; reports intervals.", min=1, max=SEEDS)
    ] = 1,
    device: options.Device = None,
    overwrite: options.Overwrite = False,
    resume: options.Resume = False,
    valid: options.Valid = None,
) -> None:
    """Train members side by side on a text, a task or pairs, and compare them by bits per byte, accuracy and the like.

    All of them under the same --minutes, --steps or --flops, in turns of ten seconds or of a part of the steps, so that
    noise falls on all alike; then a table, a picture of the curves, and what each of them writes or fills in.
    Members must be judged by the same: of a text those that write and those that fill in are not.

    With --seeds each is trained from several seeds, and members whose intervals overlap are not resolved. With --lrs
    each is trained at each of these rates, reported at the one that is best on valid, and measured on test. With
    --match parameters the others get about as many parameters as the first, by a `d` or else a `depth` of their own.

    In the folder: results.json with the same numbers, report.html with more pictures, curves.png, and a folder per
    member that `generate` reads. After a kill the same command with --resume goes on.
    """
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support.trials import TrialBudget, parse_rates

    if len(members) == 1:
        refuse_useless(ctx, "with one member", "match")
    spent, tried = TrialBudget(minutes, steps, flops), parse_rates(lr, lrs)

    from kinformer.cli.support.lent_layers import lend_layers
    from kinformer.lab.data.resolve import resolve

    with from_user(ValueError), print_warnings():
        source = resolve(data)
    choices = [parse_member_text(member, lambda name, texts: lend_layers(name, texts, source)) for member in members]

    from rich.console import Console

    from kinformer.cli.support.comparison import (
        Comparison,
        matched_members,
        prepare_comparison,
        train_and_measure,
        write_report,
    )
    from kinformer.cli.support.run_folder import claimed_folder
    from kinformer.cli.support.training import prepare, refuse_kind

    for choice in choices:
        refuse_kind(choice, source, ctx)
    check_out = partial(option_checks.refuse_comparison, out, overwrite, resume)
    settings = {**options.settings(ctx), "lr": tried[0]}
    count = steps if flops is None else 1
    job = prepare(source, count, minutes, valid=valid, device=device, check_out=check_out, **settings)
    if lrs is not None and not len(getattr(job.data, "test", ())):
        raise UserError(f"--lrs reports on test, which {job.data.name} leaves empty; give more data, or one --lr")
    named, changed = matched_members(choices, job, match is not None)
    split = "valid" if lrs is None else "test"
    with claimed_folder(out, within=True):
        comparison = Comparison(named, job, spent, tried, seeds, split, out, changed).resume_if_begun(resume)
        comparison, costs, every = prepare_comparison(comparison, overwrite)
        results = train_and_measure(comparison, costs, every)
        write_report(results, out)
    results.show(Console(width=None if Console().is_terminal else options.WIDTH, highlight=False), out)
