"""The command `kinformer train`: train a member on data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kinformer.checkpoint.model_files import BEST
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
    steps: Annotated[int | None, typer.Option(help="Number of optimiser steps; give this or --minutes.")] = None,
    minutes: options.Minutes = None,
    batch: options.Batch = options.BATCH,
    length: options.Length = options.LENGTH,
    lr: options.Rate = None,
    schedule: options.Schedule = None,
    warmup: options.Warmup = None,
    betas: options.Betas = None,
    eps: options.Eps = None,
    seed: options.Seed = options.SEED,
    clip: Annotated[float, typer.Option(help="Scale gradients with a larger norm down to this norm.")] = 1.0,
    accumulate: Annotated[
        int, typer.Option(help="Number of micro-batches in each batch; more take less memory.", min=1)
    ] = 1,
    precision: options.Precision = options.PRECISION,
    checkpointing: Annotated[
        bool, options.flag("checkpointing", "Recompute blocks in the backward pass: less memory, a third more time.")
    ] = False,
    compile: Annotated[bool, options.flag("compile", "Compile the model with torch.compile.")] = False,
    lora: options.Lora = None,
    device: options.Device = None,
    overwrite: options.Overwrite = False,
    then: Annotated[
        list[str] | None,
        typer.Option(
            help="A further phase, such as steps=500,length=1024, from the best weights of the phase before. Values "
            "that you leave out: length doubles, lr halves, window doubles. Repeatable."
        ),
    ] = None,
    resume: options.Resume = False,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            callback=option_checks.trained_model,
            is_eager=True,
            help="Trained model whose weights the training starts from: a folder of kinformer or transformers, a "
            ".gguf file, or hf:ORG/NAME. A model of the same member gives the keywords that MEMBER leaves out.",
        ),
    ] = None,
    tensorboard: options.TensorBoard = False,
    wandb: options.Wandb = False,
    wandb_project: options.WandbProject = None,
    parallel: Annotated[
        Literal["ddp", "shard"],
        typer.Option(help="Under torchrun: ddp keeps all weights in each process, shard a part."),
    ] = "ddp",
) -> None:
    """Train a member on text, a task or other data.

    \b
    Examples:
        # A small llama on the source code of Python's standard library
        kinformer train llama depth=4 --data text=stdlib --minutes 3 --out runs/llama
        # The same command with --resume continues it, also with more minutes
        kinformer train llama depth=4 --data text=stdlib --minutes 9 --out runs/llama \\
            --resume
        # Source and target texts, a task, and an environment
        kinformer train transformer --data pairs=FILE.tsv --steps 2000 --out runs/pairs
        kinformer train gpt --data task=recall,pairs=16 --minutes 2 --out runs/recall
        kinformer train gtrxl --data env=t_maze,corridor=10 --steps 2000 --out runs/maze

    \b
    --data is KIND=PLACE, with options after commas; `kinformer show data/KIND` explains them:
        text=stdlib         source code of Python's standard library
        text=PATH           a file, a folder, a 'glob', or hf:NAME/CONFIG
        pairs=FILE.tsv      a source, a tab and a target in each line
        labelled=FILE.tsv   a label, a tab and a text in each line
        multitask=FOLDER    one such labelled file for each task
        series=FILE.csv     columns of numbers over time
        images=FOLDER       MNIST's idx files, or an .npz file
        sets=NAME           sets of vectors: maximum, unique, pictures, FILE.npz
        offline=PATH        recorded episodes
        task=NAME           a generated task; `kinformer list tasks`
        env=ID              an environment; `kinformer list environments`

    The folder --out holds the last weights, and its subfolder best the best ones on validation data; `kinformer
    generate` reads both. metrics.jsonl there has a line for each step. The run is saved every ten seconds, and --resume
    continues it.

    With env=ID the member lends its layers to the member `agent`, which learns by PPO. Further keywords, such as
    discount=0.98, are keywords of `agent`.
    """
    if (steps is None) == (minutes is None):
        raise UserError("give either --steps N or --minutes M")
    if not several():
        refuse_useless(ctx, "in one process", "parallel", instead="start several processes with torchrun")
    if lora is not None and start is None:
        raise UserError(
            "--lora keeps the weights that a training starts from: without --from they are random. Give --from"
        )
    if not wandb:
        refuse_useless(ctx, "without --wandb", "wandb_project")
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.loggers import chosen_loggers

    loggers = chosen_loggers(tensorboard, wandb, wandb_project)

    from kinformer.cli.support.lent_layers import lend_layers
    from kinformer.lab.data.resolve import resolve

    with from_user(ValueError), print_warnings():
        source = resolve(data)
    choice = lend_layers(member, keywords or (), source)

    from kinformer.cli.support.foreign_files import refuse_foreign
    from kinformer.cli.support.torchrun import process_group
    from kinformer.cli.support.training import FIRST, fit_to_weights, prepare, refuse_kind, start_folder

    with process_group(parallel) as group:
        refuse_kind(choice, source, ctx)
        may_replace = overwrite or bool(then)  # with --then, --out is checked after the phases

        def check_out() -> None:
            option_checks.refuse_model(out, may_replace, resume)
            refuse_foreign(out, overwrite, resume)

        job = prepare(source, steps, minutes, valid, device, loggers, group, check_out, **options.settings(ctx))
        first = out / FIRST if then else out
        choice, job = fit_to_weights(choice, job, start, start_folder(start, first, resume))
        _run(choice, job, out, then or (), start=start, overwrite=overwrite, resume=resume)


def _run(choice: MemberChoice, job: "Job", out: Path, then: Sequence[str], **options: Any) -> None:
    """Train a member, in phases if --then is given."""
    if not then:
        return _in_one(choice, job, out, **options)
    if job.group.size > 1:
        raise UserError(
            "--then works only in one process; run without torchrun, or train each phase by itself, with --from "
            "the folder of the phase before"
        )
    from kinformer.cli.support.training_phases import train_in_phases

    train_in_phases(choice, job, then, out, **options)


def _in_one(choice: MemberChoice, job: "Job", out: Path, *, start: Path | None, overwrite: bool, resume: bool) -> None:
    """Train one member without phases, and print the result."""
    from kinformer.cli.support.guess_warning import warn_of_guessing
    from kinformer.cli.support.memory_limits import refuse_too_large
    from kinformer.cli.support.run_folder import claimed_folder, load_start, refuse_occupied
    from kinformer.cli.support.training import tell_split
    from kinformer.cli.support.training_run import train_member
    from kinformer.lab.train.guess_level import guess_level
    from kinformer.lab.train.member_fit import check_readable
    from kinformer.lab.train.run_folder import RunFolder

    settings = job.settings
    rows = -(-settings.batch // settings.accumulate)
    refuse_too_large(choice, rows, settings.length, job.device, frozen=settings.lora is not None)
    model = job.build(choice)
    check_readable(choice.text, model, job.data, settings)
    with claimed_folder(out, job.group):
        whole = resume and RunFolder(out).step is not None
        if not whole:
            load_start(start, choice.function, model, job.data)
            refuse_occupied(out, model, overwrite, resume)
        job = job.resume_measurements(out, model) if whole else job.fix_measurements([model])
        tell_split(job)
        history = train_member(choice.text, model, job, out, resume=resume)
        _print_result(choice.text, history, job, out)
        level = guess_level(model, job.data, job.settings)
        warn_of_guessing(history, level, settings.recipe(model).peak)


def _print_result(text: str, history: "History", job: "Job", out: Path) -> None:
    """Print the best measurement, and the last one if it is another, with the folders of their models."""
    best, last = history.best, history.points[-1]
    extras = "".join(f", {name} {value:.3f}" for name, value in best.extras.items())
    result = f"{text}: {best.valid:.3f} {history.metric.name}{extras} on {job.measurement} at"
    if best is last:
        places = f"{result} the last step, {best.step:,}, saved in {out} and {out / BEST}"
    else:
        places = (
            f"{result} step {best.step:,}, saved in {out / BEST}; {last.valid:.3f} at the last step, {history.step:,}, "
            f"saved in {out}"
        )
    print(f"{places}; {history.speed:,.0f} {job.data.counted}/s")
