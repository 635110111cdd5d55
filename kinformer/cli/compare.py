"""The command `kinformer compare`: train members on the same data and budget, and compare them."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kinformer.cli import options
from kinformer.cli.errors import print_warnings, refuse_useless
from kinformer.cli.support import option_checks
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice, parse_member_text

SEEDS = 1000  # maximum number of seeds: trainings of each member at each rate


def compare(
    ctx: typer.Context,
    members: Annotated[
        list[str],
        typer.Argument(
            callback=option_checks.members,
            help="Members (named models); keywords go in brackets and quotes, as in gpt 'gpt(depth=2)'.",
        ),
    ],
    *,
    data: options.Data,
    minutes: options.Minutes = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of optimiser steps of each training; give this, --minutes or --flops.")
    ] = None,
    flops: Annotated[
        float | None, typer.Option(help="Additions and multiplications of each training, such as 1e13.")
    ] = None,
    out: Annotated[Path, typer.Option(callback=option_checks.folder, help=options.OUT)],
    batch: options.Batch = options.BATCH,
    length: options.Length = options.LENGTH,
    lr: options.Rate = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Values to try of a setting or keyword, such as lr=1e-3,3e-3 or window=64,256. Repeatable."),
    ] = None,
    lrs: Annotated[str | None, typer.Option(help="Another spelling of --grid lr=..., such as 1e-3,3e-3.")] = None,
    match: Annotated[
        Literal["parameters"] | None, typer.Option(help="Give all members about as many parameters as the first one.")
    ] = None,
    seed: options.Seed = options.SEED,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds; 2 or more give confidence intervals of the results.", min=1, max=SEEDS)
    ] = 1,
    precision: options.Precision = options.PRECISION,
    device: options.Device = None,
    overwrite: options.Overwrite = False,
    resume: options.Resume = False,
    tensorboard: options.TensorBoard = False,
    wandb: options.Wandb = False,
    wandb_project: options.WandbProject = None,
    valid: options.Valid = None,
) -> None:
    """Train several members on the same data, and compare them.

    \b
    Examples:
        # Three members, 3 minutes each
        kinformer compare gpt llama transformer_xl --data text=stdlib \\
            --minutes 3 --out runs/three
        # 2 learning rates x 2 windows, 3 seeds each
        kinformer compare longformer_lm --data text=PATH --steps 1000 --seeds 3 \\
            --grid lr=1e-3,3e-3 --grid window=64,256 --out runs/sweep

    All members get the same budget: --minutes, --steps or --flops. They train in turns of ten seconds, or of a part of
    the steps, so that other load of the machine affects all of them equally. The result is a table with the metric,
    such as bits per byte or accuracy. There is also a picture of the metric in the course of the training, and a text
    that each member generates or fills in. Generated texts are sampled with temperature 0.6 and top-p 0.9, as by
    `kinformer generate`. All members must have the same metric. Members that generate text and
    members that fill in masked tokens cannot be compared on a text.

    With --seeds each member is trained with several seeds. If the confidence intervals of two members overlap, the
    table reports them as not resolved: either may be better. With --match parameters the other members get about as
    many parameters as the first one, by another width `d` or else another `depth`.

    With --grid each member is trained at each point of the grid. A point is one combination of the values. The point
    that is best on validation data is then measured on test data. A grid varies keywords of the members, and these
    settings: lr, batch, length, schedule, warmup, betas, eps, clip, decay, accumulate and precision. Values with commas
    have brackets, as in betas=(0.9,0.95),(0.9,0.98).

    The folder --out holds results.json with all numbers, report.html with more pictures, curves.png, grid.png, and for
    each member a folder that `generate` reads. The number of trainings and their total time are printed before they
    begin. If the command is stopped, the same command with --resume continues.
    """
    if len(members) == 1:
        refuse_useless(ctx, "with one member", "match")
    if not wandb:
        refuse_useless(ctx, "without --wandb", "wandb_project")
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.grid import GridPoint, parse_grid
    from kinformer.cli.support.loggers import chosen_loggers

    tried = parse_grid(grid or (), lrs, options.typed(ctx))
    loggers = chosen_loggers(tensorboard, wandb, wandb_project)

    from kinformer.cli.support.lent_layers import lend_layers
    from kinformer.cli.support.trials import TrialBudget
    from kinformer.lab.data.resolve import resolve

    spent = TrialBudget(minutes, steps, flops)
    with from_user(ValueError), print_warnings():
        source = resolve(data)

    def make(point: GridPoint) -> list[MemberChoice]:
        """The members with the keywords of a point of the grid."""
        return [
            parse_member_text(member, lambda name, texts: lend_layers(name, [*texts, *point.keywords], source))
            for member in members
        ]

    from kinformer.cli.support.comparison import (
        Comparison,
        check_grid,
        members_at_points,
        prepare_comparison,
        train_and_measure,
        write_report,
    )
    from kinformer.cli.support.console import plain_console
    from kinformer.cli.support.foreign_files import refuse_foreign
    from kinformer.cli.support.run_folder import claimed_folder
    from kinformer.cli.support.training import prepare, refuse_kind

    choices = make(GridPoint())
    check_grid(tried, choices, make, source)
    for choice in choices:
        refuse_kind(choice, source, ctx)

    def check_out() -> None:
        option_checks.refuse_comparison(out, overwrite, resume)
        refuse_foreign(out, overwrite, resume)

    count = steps if flops is None else 1
    settings = {**options.settings(ctx), **tried.points[0].settings}
    job = prepare(source, count, minutes, valid, device, loggers, check_out=check_out, **settings)
    if tried.axes and not len(getattr(job.data, "test", ())):
        raise UserError(
            f"--grid and --lrs need test data, but the test split of {job.data.name} is empty. Give more data, or "
            "leave them out"
        )
    named, at, changed = members_at_points(make, tried, job, match is not None)
    split = "test" if tried.axes else "valid"
    with claimed_folder(out, within=True):
        comparison = Comparison(named, job, spent, tried, seeds, split, out, changed, at=at).resume_if_begun(resume)
        comparison, costs, every = prepare_comparison(comparison, overwrite)
        results = train_and_measure(comparison, costs, every)
        write_report(results, out)
    results.show(plain_console(width=None if plain_console().is_terminal else options.WIDTH), out)
