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
    steps: Annotated[
        int | None, typer.Option(help="Number of optimiser steps. Give either --steps or --minutes.")
    ] = None,
    minutes: options.Minutes = None,
    batch: options.Batch = options.BATCH,
    length: options.Length = options.LENGTH,
    lr: options.Rate = None,
    schedule: options.Schedule = None,
    warmup: options.Warmup = None,
    betas: options.Betas = None,
    eps: options.Eps = None,
    seed: options.Seed = options.SEED,
    clip: Annotated[
        float, typer.Option(help="Largest norm of the gradient; a larger gradient is scaled down to it.")
    ] = 1.0,
    accumulate: Annotated[
        int,
        typer.Option(
            help="Number of micro-batches into which each batch is split; more micro-batches take less memory, and "
            "change the random dropout.",
            min=1,
        ),
    ] = 1,
    precision: options.Precision = options.PRECISION,
    checkpointing: Annotated[
        bool,
        options.flag(
            "checkpointing",
            "Recompute the blocks of the model in the backward pass, which takes less memory and a third more time.",
        ),
    ] = False,
    compile: Annotated[
        bool, options.flag("compile", "Compile the model with torch.compile before the first step.")
    ] = False,
    device: options.Device = None,
    overwrite: options.Overwrite = False,
    then: Annotated[
        list[str] | None,
        typer.Option(
            help="Settings of a further phase of training, such as steps=500,length=1024; give the option again for "
            "more phases."
        ),
    ] = None,
    resume: options.Resume = False,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            callback=option_checks.trained_model,
            is_eager=True,
            help="Folder with a trained model whose weights the new training starts from.",
        ),
    ] = None,
    tensorboard: options.TensorBoard = False,
    wandb: options.Wandb = False,
    wandb_project: options.WandbProject = None,
    parallel: Annotated[
        Literal["ddp", "shard"],
        typer.Option(
            help="With several processes under torchrun: ddp keeps all weights in each process, shard keeps a part "
            "of them in each."
        ),
    ] = "ddp",
) -> None:
    """Train a member on text, a task or other data.

    \b
    --data is KIND=PLACE, with options after commas:
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

    Files: .gz, .xz and .zst files are unpacked. In JSON lines, options name the fields: text=notes.jsonl,field=body for
    a text, and source=, target=, label= and text= for pairs and labels. For multitask, sampling=uncertainty trains on
    the rows whose class the model is least sure of. The command prints on stderr how it splits the data into train,
    valid and test.

    Documents: each row of a data set and each file of a folder is a document. A file is split further at the end of
    each line by documents=lines, at blank lines by documents=blank, and by documents=TEXT at each TEXT, which is left
    out. A token attends only to tokens of the same document. To make one text of all documents, use documents=joined.

    Tokens: a token is a byte by default. Use tokenizer=bpe:4096 to learn 4,096 larger tokens, or tokenizer=PATH to read
    a tokenizer.json.

    Results: the folder --out (DIR) holds the last weights, and DIR/best holds the best weights by the metric on
    validation data. DIR/metrics.jsonl has a line for each step, and DIR/trainer the training state that --resume needs.
    `kinformer generate` and the Python function `kinformer.load` read DIR or DIR/best. The metric of a member that
    generates text is bits per byte. A member that fills in hidden bytes, such as bert, has bits per masked byte, and a
    member that reads pairs has bits per token of the target. A measurement of the metric reads 65,536 bytes spread over
    the validation data, or all of it if it is smaller. All measurements together take about a quarter of the training
    time.

    Tasks: members that read text or pairs can train on a task, such as task=recall,pairs=16. The metric is the share of
    right answers. The sizes of the task, such as pairs=16, determine the length of rows, so --length has no effect.
    `kinformer show recall` explains a task.

    Environments: with env=ID, the member supplies the layers of a policy and a value function, which learn by PPO. ID
    is a Gymnasium environment or an environment of kinformer, such as t_maze,corridor=10. Each update uses --length
    steps in each of --batch environments. The metric is the return of episodes. Keywords that the member does not have
    are keywords of the member `agent`, such as discount=0.98, entropy=0.02 or burn_in=8.

    Learning rate: the rate rises to --lr during the --warmup and then follows the --schedule, which ends together with
    the --steps or --minutes. Its progress is the fraction of these that is spent. A --warmup in steps takes that many
    steps with either of them. noam is the schedule of the 2017 Transformer. Its rate follows from the width of the
    model unless --lr is given. With a --warmup in steps, such as 4000, the noam rate depends only on the number of the
    step, and not on the length of the training.

    Resuming: the run is saved every ten seconds, at the end, at Ctrl-C and at SIGTERM. The same command with --resume
    continues from there. On a CPU the weights are the same as without the interruption. If nothing was saved, --resume
    starts from the beginning. With more --steps or --minutes it also continues a finished run, with the learning rates
    of a schedule of the new length.

    Other weights: --from DIR starts a new run from the weights of another model. The windows and the learned positions
    of the two models may have different lengths. If the data is a series, its columns are read with the names and
    scales that the other model has stored.

    Phases: --then adds a phase. Each phase starts from the best weights of the phase before, with twice the --length
    and half the learning rate. The member's keyword `window` doubles too, up to `top`, the window of the highest layer.
    The settings of a phase can change this: steps, minutes, batch, length, lr and keywords of the member. Finished
    phases are skipped with --resume.

    Processes: `torchrun --nproc-per-node 2 -m kinformer train ...` trains in two processes that share the rows of each
    --batch. Without dropout the losses equal the losses of one process. There are two exceptions: an encoder whose loss
    has a penalty on each token, and decision_transformer with the keyword beside. With --resume you may use another
    number of processes.

    \b
    Examples:
        # A small llama on the source code of Python's standard library
        kinformer train llama depth=4 --data text=stdlib --minutes 3 --out runs/llama
        # The same command with --resume continues it, also with more minutes
        kinformer train llama depth=4 --data text=stdlib --minutes 9 --out runs/llama \\
            --resume
        # Source and target texts
        kinformer train transformer --data pairs=FILE.tsv --steps 2000 --out runs/pairs
        # A task, and an environment
        kinformer train gpt --data task=recall,pairs=16 --minutes 2 --out runs/recall
        kinformer train gtrxl --data env=t_maze,corridor=10 --steps 2000 --out runs/maze
    """
    if (steps is None) == (minutes is None):
        raise UserError("give either --steps N or --minutes M")
    if not several():
        refuse_useless(ctx, "in one process", "parallel", instead="start several processes with torchrun")
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
        choice, job = fit_to_weights(choice, job, start_folder(start, first, resume))
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
    refuse_too_large(choice, -(-settings.batch // settings.accumulate), settings.length, job.device)
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
