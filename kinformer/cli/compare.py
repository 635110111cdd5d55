"""The command `kinformer compare`: train members on the same data and budget, and compare them."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from kinformer.cli import options
from kinformer.cli.errors import print_warnings, refuse_useless
from kinformer.cli.support import option_checks
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import parse_member_text

SEEDS = 1000  # maximum number of seeds: trainings of each member at each rate


def compare(
    ctx: typer.Context,
    members: Annotated[
        list[str],
        typer.Argument(
            callback=option_checks.members,
            help="Members (named models) to compare; keywords stand in brackets, and then in quotes, as in gpt "
            "'gpt(depth=2, heads=4)'.",
        ),
    ],
    *,
    data: options.Data,
    minutes: options.Minutes = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Number of optimiser steps to train each member. Give one of --minutes, --steps and --flops."
        ),
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option(help="Additions and multiplications that the training of each member may take, such as 1e13."),
    ] = None,
    out: Annotated[Path, typer.Option(callback=option_checks.folder, help=options.OUT)],
    batch: options.Batch = options.BATCH,
    length: options.Length = options.LENGTH,
    lr: options.Rate = None,
    lrs: Annotated[
        str | None,
        typer.Option(
            help="Learning rates to try for each member, such as 1e-3,3e-3; the best one on validation data is "
            "measured on test data."
        ),
    ] = None,
    match: Annotated[
        Literal["parameters"] | None,
        typer.Option(
            help="Give all members about as many parameters as the first one, by changing their width d or else their "
            "depth."
        ),
    ] = None,
    seed: options.Seed = options.SEED,
    seeds: Annotated[
        int,
        typer.Option(
            help="Number of seeds; each member is trained once with each seed, and 2 or more give confidence intervals "
            "of the results.",
            min=1,
            max=SEEDS,
        ),
    ] = 1,
    device: options.Device = None,
    overwrite: options.Overwrite = False,
    resume: options.Resume = False,
    valid: options.Valid = None,
) -> None:
    """Train several members on the same data, and compare them.

    All members get the same budget: --minutes, --steps or --flops. They train in turns of ten seconds, or of a part of
    the steps, so that other load of the machine affects all of them equally. The result is a table with the metric,
    such as bits per byte or accuracy. There is also a picture of the metric in the course of the training, and a text
    that each member generates or fills in. All members must have the same metric. Members that generate text and
    members that fill in hidden tokens cannot be compared on a text.

    With --seeds each member is trained with several seeds. If the confidence intervals of two members overlap, the
    table reports them as not resolved: either may be better. With --lrs each member is trained at each of these
    learning rates. The rate that is best on validation data is then measured on test data. With --match parameters the
    other members get about as many parameters as the first one, by another width `d` or else another `depth`.

    The folder --out holds results.json with all numbers, report.html with more pictures, curves.png, and for each
    member a folder that `generate` reads. If the command is stopped, the same command with --resume continues.

    `kinformer train --help` explains --data.

    \b
    Examples:
        # Three members, 3 minutes each
        kinformer compare gpt llama transformer_xl --data text=stdlib \\
            --minutes 3 --out runs/three
        # Each member at its best of two learning rates, with 3 seeds
        kinformer compare gpt llama --data text=PATH --steps 1000 --seeds 3 \\
            --lrs 1e-3,3e-3 --out runs/two
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.trials import TrialBudget, parse_rates

    if len(members) == 1:
        refuse_useless(ctx, "with one member", "match")
    spent, tried = TrialBudget(minutes, steps, flops), parse_rates(lr, lrs)

    from kinformer.cli.support.lent_layers import lend_layers
    from kinformer.lab.data.resolve import resolve

    with from_user(ValueError), print_warnings():
        source = resolve(data)
    choices = [parse_member_text(member, lambda name, texts: lend_layers(name, texts, source)) for member in members]

    from kinformer.cli.support.comparison import (
        Comparison,
        matched_members,
        prepare_comparison,
        train_and_measure,
        write_report,
    )
    from kinformer.cli.support.console import plain_console
    from kinformer.cli.support.run_folder import claimed_folder
    from kinformer.cli.support.training import prepare, refuse_kind

    for choice in choices:
        refuse_kind(choice, source, ctx)
    check_out = partial(option_checks.refuse_comparison, out, overwrite, resume)
    settings = {**options.settings(ctx), "lr": tried[0]}
    count = steps if flops is None else 1
    job = prepare(source, count, minutes, valid=valid, device=device, check_out=check_out, **settings)
    if lrs is not None and not len(getattr(job.data, "test", ())):
        raise UserError(
            f"--lrs needs test data, but the test split of {job.data.name} is empty; give more data, or use --lr"
        )
    named, changed = matched_members(choices, job, match is not None)
    split = "valid" if lrs is None else "test"
    with claimed_folder(out, within=True):
        comparison = Comparison(named, job, spent, tried, seeds, split, out, changed).resume_if_begun(resume)
        comparison, costs, every = prepare_comparison(comparison, overwrite)
        results = train_and_measure(comparison, costs, every)
        write_report(results, out)
    results.show(plain_console(width=None if plain_console().is_terminal else options.WIDTH), out)
