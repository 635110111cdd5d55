"""`kinformer train MEMBER [key=value ...]`: train a member on a text."""

from typing import Annotated

import typer

from kinformer.cli.errors import UserError
from kinformer.cli.options import BATCH, LENGTH, SEED, Batch, Data, Length, Minutes, Out, Overwrite, Rate, Seed
from kinformer.cli.wanted import wanted


def train(
    member: Annotated[str, typer.Argument(help="A member, as `kinformer list members` names it; or file.py:function.")],
    keywords: Annotated[list[str] | None, typer.Argument(help="Its keywords, like depth=2.")] = None,
    *,
    data: Data,
    out: Out,
    steps: Annotated[int | None, typer.Option(help="How many optimiser steps, instead of --minutes.")] = None,
    minutes: Minutes = None,
    batch: Batch = BATCH,
    length: Length = LENGTH,
    lr: Rate = None,
    seed: Seed = SEED,
    overwrite: Overwrite = False,
    then: Annotated[list[str] | None, typer.Option(help="A further phase: steps=500, length=1024.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the phases of an earlier command.")] = False,
) -> None:
    """Train a member on a text, or one that reads pairs, like transformer, on pairs=FILE.tsv.

    The best of it by bits per byte on valid is kept in a folder that `generate` reads. A member that fills in hidden
    bytes, like bert, is judged by its bits per masked byte; one that reads pairs by the bits of each byte of a target.

    It saves every ten seconds until valid is first measured, then at each measurement that finds it better than before,
    and at Ctrl-C. Measuring takes about a tenth of the training's time.

    With --then it trains in phases: each begins with the best weights of the one before, with `window` and --length
    twice as long and half the learning rate, unless its words say otherwise: steps, minutes, batch, length, lr and
    keywords of the member. --resume leaves out phases that are done.
    """
    if (steps is None) == (minutes is None):
        raise UserError("give one of --steps N and --minutes M")
    if resume and not then:
        raise UserError("--resume goes on with phases, and no --then came; without phases a training begins anew")
    one = wanted(member, keywords or ())

    from kinformer.cli.afford import refuse_too_large
    from kinformer.cli.training import learn, prepare, readable, spare

    job = prepare(data, steps, minutes, batch, length, lr, seed)
    if then:
        from kinformer.cli.phases import in_phases

        return in_phases(one, job, then, out, overwrite=overwrite, resume=resume)
    refuse_too_large(one, batch, length)
    model = one.build(seed)
    readable(one.text, model, job)
    spare(out, model, overwrite)
    job = job.fixed([model])
    history = learn(one.text, model, job, out)
    best = history.best
    print(
        f"{one.text}: {best.valid:.3f} {history.metric.name} on {job.measured} "
        f"at step {best.step:,}, {history.speed:,.0f} tokens/s; in {out}"
    )
