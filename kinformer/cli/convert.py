"""The command `kinformer convert`: give a trained model another mechanism."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kinformer.cli import options
from kinformer.cli.errors import print_warnings, refuse_useless
from kinformer.cli.support import option_checks
from kinformer.cli.support.lora_option import parse_lora
from kinformer.lab.errors import FAILED, UserError, from_user

ADAPTATION = ("full", "lora", "teach", "batch", "length", "lr", "precision", "checkpointing")
SECONDS = 60.0  # for measuring the speed of long rows


def _settings(ctx: typer.Context, full: bool, lora: Any) -> Any:
    """Return the settings of the adaptation."""
    from kinformer.lab.conversion.adaptation import ADAPTERS, adaptation_settings

    named = {name: ctx.params[name] for name in ("batch", "length", "lr", "precision", "checkpointing", "seed")}
    return adaptation_settings(None if full else lora or ADAPTERS, **named)


def _check_data(spec: str | None) -> str | None:
    return None if spec is None else option_checks.data(spec)


def _check_out(ctx: typer.Context, out: Path | None) -> Path | None:
    return None if out is None else option_checks.folder(ctx, out)


def convert(
    ctx: typer.Context,
    folder: options.Trained,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTION=VALUE]...", help="Options of the conversion, such as factor=4."),
    ] = None,
    *,
    to: Annotated[
        str,
        typer.Option(
            help="Recipe, such as window, yarn or linear; `kinformer list convert` shows all. Or a member, which is a "
            "type of model, or a pattern, such as 'Causal() & (Band(251) | Tokens(4))'."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            callback=_check_data,
            help="Text to fit new parts on and to adapt the model; its validation part measures the model. As "
            "text=PATH or text=stdlib.",
        ),
    ] = None,
    valid: options.Valid = None,
    out: Annotated[
        Path | None,
        typer.Option(callback=_check_out, help="Folder of the converted model and its report, new or empty."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Minutes of adaptation after the conversion: training with the source as teacher."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of adaptation, in place of --minutes.")] = None,
    full: Annotated[
        bool, options.flag("full", "Adapt all weights, in place of low-rank changes (LoRA) of the attention.")
    ] = False,
    lora: Annotated[
        Any,
        typer.Option(
            parser=parse_lora,
            metavar="rank=R",
            help="Low-rank adaptation: rank=8, with alpha=, layers=all and train=NAME after commas; default: rank=8.",
        ),
    ] = None,
    teach: Annotated[
        float, typer.Option(help="Weight of the loss that compares predictions with the source's; 0: none.", min=0)
    ] = 1.0,
    batch: Annotated[int, options.count("Rows in each batch of the adaptation.")] = 1,
    length: Annotated[int, options.count("Tokens in each row of the adaptation.")] = 512,
    lr: Annotated[
        float | None, typer.Option(help="Highest learning rate; default: 5e-4 with LoRA, 5e-5 with --full.")
    ] = None,
    precision: options.Precision = options.PRECISION,
    checkpointing: Annotated[
        bool, options.flag("checkpointing", "Recompute blocks in the backward pass: less memory, a third more time.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(help="Time for measuring the speed on long rows, for each model; 0: none.", min=0)
    ] = SECONDS,
    seed: options.Seed = options.SEED,
    dry_run: Annotated[bool, options.flag("dry-run", "Print the plan only; nothing is computed or written.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", is_eager=True, help="Replace the model in --out; other files there stay.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", is_eager=True, help="Continue the adaptation in --out; nothing is converted again."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Give a trained model another mechanism.

    \b
    Examples:
        # A window of 252 tokens and 4 attention sinks: long texts in constant memory
        kinformer convert HF_FOLDER --to window window=252 sinks=4 --out runs/window
        # Only the plan: copied, moved and new tensors, and rows with equal outputs
        kinformer convert HF_FOLDER --to mqa --dry-run
        # Measured before and after on a text
        kinformer convert runs/llama --to window window=64 keep=1 --data text=stdlib \\
            --out runs/short
        # Fewer heads of keys and values, adapted for 10 minutes with the source as teacher
        kinformer convert HF_FOLDER --to mqa --data text=PATH --minutes 10 --out runs/mqa

    Weights that still fit are copied. The model is a run of kinformer, a folder of transformers, a .gguf file or
    hf:ORG/NAME. The result in --out is a run that every command reads. report.html there shows the plan, the
    measurements and the costs. conversion.json has the same numbers.

    The plan is printed first. A tensor is copied, or moved to another name, or computed from others (averaged, merged,
    tiled, stretched, duplicated, shortened), or it is new; tensors of the source that have no place are dropped.
    """
    if out is None and not dry_run:
        raise UserError("give --out FOLDER for the converted model, or --dry-run to see only the plan")
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.conversion import convert_into, print_plan
    from kinformer.cli.support.load_model import load_model

    if minutes is None and steps is None:
        refuse_useless(ctx, "without --minutes or --steps", *ADAPTATION, "resume")
    elif data is None:
        raise UserError("an adaptation trains on a text; give --data text=PATH, or leave out --minutes and --steps")
    if full:
        refuse_useless(ctx, "with --full", "lora")
    if out is not None:
        option_checks.refuse_model(out, overwrite, resume)
        if resume and not out.is_dir():
            raise UserError(f"there is no folder {out} to continue in; leave out --resume")
    model = load_model(folder, None, "cpu")
    with from_user(ValueError, TypeError, LookupError), from_user(OSError, code=FAILED), print_warnings():
        if dry_run or out is None:
            print_plan(model, to, tuple(words or ()), as_json)
            return
        convert_into(
            model,
            to,
            tuple(words or ()),
            data,
            out,
            as_json,
            valid=valid,
            minutes=minutes,
            steps=steps,
            settings=_settings(ctx, full, lora),
            teach=teach,
            resume=resume,
            overwrite=overwrite,
            seconds=seconds,
            seed=seed,
        )
