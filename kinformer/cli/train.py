"""`kinformer train MEMBER [key=value ...]`: train a member on a text."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kinformer.cli import options
from kinformer.cli.errors import print_warnings, refuse_useless, several
from kinformer.cli.support import option_checks
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice

if TYPE_CHECKING:
    from kinformer.cli.support.training import Job
    from kinformer.lab.train.history import History


def train(
    ctx: typer.Context,
    member: options.Member,
    keywords: options.Keywords = None,
    *,
    data: options.Data,
    valid: options.Valid = None,
    out: Annotated[Path, typer.Option(callback=option_checks.folder, help=options.OUT)],
    steps: Annotated[int | None, typer.Option(help="How many optimiser steps, instead of --minutes.")] = None,
    minutes: options.Minutes = None,
    batch: options.Batch = options.BATCH,
    length: options.Length = options.LENGTH,
    lr: options.Rate = None,
    schedule: options.Schedule = None,
    warmup: options.Warmup = None,
    betas: options.Betas = None,
    eps: options.Eps = None,
    seed: options.Seed = options.SEED,
    clip: Annotated[float, typer.Option(help="The most that a gradient's norm may be.")] = 1.0,
    accumulate: Annotated[
        int, typer.Option(help="Number of pieces in which a batch is read: less memory, other dropout.", min=1)
    ] = 1,
    precision: Annotated[Literal["float32", "bf16"], typer.Option(help="bf16: matrices in bfloat16.")] = "float32",
    checkpointing: Annotated[bool, options.flag("checkpointing", "Less memory, a third more time.")] = False,
    compile: Annotated[bool, options.flag("compile", "Compile the model before the first step.")] = False,
    device: options.Device = None,
    overwrite: options.Overwrite = False,
    then: Annotated[list[str] | None, typer.Option(help="A further phase: steps=500, length=1024.")] = None,
    resume: options.Resume = False,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from", callback=option_checks.trained_model, is_eager=True, help="Start from the weights in this folder."
        ),
    ] = None,
    tensorboard: Annotated[bool, options.flag("tensorboard", "Also write events for TensorBoard.")] = False,
    parallel: Annotated[
        Literal["ddp", "shard"], typer.Option(help="Under torchrun: each process holds all weights, or a share.")
    ] = "ddp",
) -> None:
    """Train a member on a text or a task, or one that reads pairs, like transformer, on pairs=FILE.tsv.

    --data text=WHERE is stdlib, a file, a folder, a 'glob' or hf:NAME/CONFIG; .gz, .xz and .zst are read unpacked, and
    of JSON lines a field: text=notes.jsonl,field=body. Rows, files of a folder, and what documents=lines, blank or a
    text ends are documents, which read only themselves; documents=joined makes one text of all. A token is a byte;
    tokenizer=bpe:4096 learns larger ones, tokenizer=PATH reads a tokenizer.json. pairs=FILE has a source, a tab and a
    target in each line, labelled=FILE a label, a tab and a text, or fields that source=, target=, label=, text= name.
    multitask=FOLDER has such a file for each task; sampling=uncertainty learns from the rows that the model is least
    sure of. What is split how is said on stderr.

    --out keeps the run: the last weights, the best by the metric on valid in DIR/best, metrics.jsonl with a line for
    each step, and in trainer/ what it takes to go on. `generate` and `load` read DIR or DIR/best. A member that fills
    in hidden bytes, like bert, is judged by its bits per masked byte; one that reads pairs by the bits per token of a
    target. A measurement reads 65,536 bytes spread over valid, or all of a smaller valid. All measurements
    together take about a quarter of the time.

    A task, as task=recall,pairs=16, is for every member and judged by the share of answers that are right; its sizes
    say how long rows are, and --length says nothing. `kinformer list tasks` has them all, `kinformer show recall` one.

    --data env=ID is a Gymnasium environment, or one of ours, env=t_maze,corridor=10: the member lends its layers to a
    policy and a value, which learn by PPO from --length steps at a time in --batch environments, judged by what
    episodes return. Keywords that the member has not are `agent`'s: discount=0.98, entropy=0.02, burn_in=8.

    The learning rate rises during the --warmup to --lr and then follows the --schedule, which ends when the --steps or
    --minutes do: its progress is the spent fraction of the budget. A --warmup in steps takes that many steps under
    either budget. noam is the schedule of the 2017 Transformer. Its rate follows from the width of the model unless
    --lr is given. With --warmup 4000 it depends on the step alone.

    It saves every ten seconds, at the end, at Ctrl-C and at SIGTERM. The same command with --resume goes on from
    there, on a CPU to the same weights as if it had never stopped; where nothing was saved it begins anew. More --steps
    or --minutes go on with what has ended, at the rates of a schedule of the new length. --from DIR starts a new run
    from the weights of another, whose windows and learned positions may be of other lengths. It reads a series by the
    names and scales of the columns that those weights learned from.

    With --then it trains in phases. Each phase starts from the best weights of the phase before, with twice the
    `window` (at most `top`), twice the --length and half the learning rate. The words of a phase can change that:
    steps, minutes, batch, length, lr and keywords of the member. --resume skips finished phases.

    `torchrun --nproc-per-node 2 -m kinformer train ...` trains in two processes, which share the rows of each --batch:
    the same losses as in one. --resume goes on in another number of them.
    """
    if (steps is None) == (minutes is None):
        raise UserError("give one of --steps N and --minutes M")
    if not several():
        refuse_useless(ctx, "in one process", "parallel", instead="start several processes with torchrun")
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support.lent_layers import lend_layers
    from kinformer.lab.data.resolve import resolve

    with from_user(ValueError), print_warnings():
        source = resolve(data)
    choice = lend_layers(member, keywords or (), source)

    from kinformer.cli.support.torchrun import process_group
    from kinformer.cli.support.training import FIRST, fit_to_weights, prepare, refuse_kind, start_folder

    with process_group(parallel) as group:
        refuse_kind(choice, source, ctx)
        may_replace = overwrite or bool(then)  # phases are checked first
        check_out = partial(option_checks.refuse_model, out, may_replace, resume)
        job = prepare(source, steps, minutes, valid, device, tensorboard, group, check_out, **options.settings(ctx))
        first = out / FIRST if then else out
        choice, job = fit_to_weights(choice, job, start_folder(start, first, resume))
        _run(choice, job, out, then or (), start=start, overwrite=overwrite, resume=resume)


def _run(choice: MemberChoice, job: "Job", out: Path, then: Sequence[str], **options: Any) -> None:
    """Train a member, in phases where further ones are named."""
    if not then:
        return _in_one(choice, job, out, **options)
    if job.group.size > 1:
        raise UserError("--then trains in one process; leave torchrun out, or train each phase --from the last")
    from kinformer.cli.support.training_phases import train_in_phases

    train_in_phases(choice, job, then, out, **options)


def _in_one(choice: MemberChoice, job: "Job", out: Path, *, start: Path | None, overwrite: bool, resume: bool) -> None:
    """Train one member in one go, and say what came of it."""
    from kinformer.cli.support.memory_limits import refuse_too_large
    from kinformer.cli.support.run_folder import claimed_folder, load_start, refuse_occupied
    from kinformer.cli.support.training import tell_split, train_member
    from kinformer.lab.train.member_fit import check_readable
    from kinformer.lab.train.run_folder import RunFolder

    settings = job.settings
    refuse_too_large(choice, -(-settings.batch // settings.accumulate), settings.length)
    model = job.build(choice)
    check_readable(choice.text, model, job.data, settings)
    with claimed_folder(out, job.group):
        whole = resume and RunFolder(out).step is not None
        if not whole:
            load_start(start, choice.function, model, job.data)
            refuse_occupied(out, model, overwrite, resume)
        job = job.resume_measurements(out, model) if whole else job.fix_measurements([model])
        tell_split(job)
        _print_result(choice.text, train_member(choice.text, model, job, out, resume=resume), job, out)


def _print_result(text: str, history: "History", job: "Job", out: Path) -> None:
    """The best and the last measurement, and where the models are."""
    best = history.best
    extras = "".join(f", {name} {value:.3f}" for name, value in best.extras.items())
    print(
        f"{text}: {best.valid:.3f} {history.metric.name}{extras} on {job.measurement} at step {best.step:,}, "
        f"in {out / 'best'}; {history.points[-1].valid:.3f} at the end, step {history.step:,}, in {out}; "
        f"{history.speed:,.0f} {job.data.counted}/s"
    )
