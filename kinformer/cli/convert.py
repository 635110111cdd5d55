"""The command `kinformer convert`: give a trained model another mechanism."""

from pathlib import Path
from typing import Annotated

import typer

from kinformer.cli import options
from kinformer.cli.errors import print_warnings
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, UserError, from_user

SECONDS = 60.0  # for measuring the speed of long rows


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
            help="Conversion, such as window, yarn or linear; `kinformer list convert` shows all. Or a pattern, such "
            "as 'Causal() & (Band(251) | Tokens(4))'."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            callback=_check_data,
            help="Text on which new parts are matched and adapted; its validation part measures the model. As "
            "text=PATH or text=stdlib.",
        ),
    ] = None,
    valid: options.Valid = None,
    out: Annotated[Path | None, typer.Option(callback=_check_out, help=options.OUT)] = None,
    seconds: Annotated[
        float, typer.Option(help="Time for measuring the speed on long rows, for each model; 0: none.", min=0)
    ] = SECONDS,
    seed: options.Seed = options.SEED,
    dry_run: Annotated[bool, options.flag("dry-run", "Print the plan only; nothing is computed or written.")] = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Give a trained model another mechanism, and keep its trained weights.

    \b
    Examples:
        # A window of 252 tokens and 4 attention sinks: long texts in constant memory
        kinformer convert HF_FOLDER --to window window=252 sinks=4 --out runs/window
        # Only the plan: copied, moved and new tensors, and rows with equal outputs
        kinformer convert HF_FOLDER --to mqa --dry-run
        # Measured before and after on a text
        kinformer convert runs/llama --to window window=64 keep=1 --data text=stdlib \\
            --out runs/short

    The model is a run of kinformer, a folder of transformers, a .gguf file or hf:ORG/NAME. The result in --out is a run
    that every command reads. report.html there shows the plan, the measurements and the costs. conversion.json has the
    same numbers.

    The plan is printed first. A tensor is copied, or moved to another name, or computed from several (averaged, tiled,
    stretched), or it is new; tensors of the source that have no place are dropped.
    """
    if out is None and not dry_run:
        raise UserError("give --out FOLDER for the converted model, or --dry-run to see only the plan")
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.conversion import convert_into, print_plan
    from kinformer.cli.support.load_model import load_model

    if out is not None:
        option_checks.refuse_model(out, overwrite, False)
    model = load_model(folder, None, "cpu")
    with from_user(ValueError, TypeError, LookupError), from_user(OSError, code=FAILED), print_warnings():
        if dry_run or out is None:
            print_plan(model, to, tuple(words or ()), as_json)
            return
        convert_into(model, to, tuple(words or ()), data, valid, out, seconds, seed, as_json)
