"""The options that several commands share."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kinformer.cli.support import option_checks
from kinformer.core.training_recipe import ScheduleName

MOST = 10**12  # of anything that is counted; what memory holds is asked where it is needed
WIDTH = 200  # of a table where there is no terminal to ask, so that no cell is cut
SETTINGS = (
    *("batch", "length", "lr", "schedule", "warmup", "betas", "eps", "seed"),
    *("clip", "accumulate", "precision", "checkpointing", "compile"),
)
LAST_SEED = 2**62  # PyTorch takes 64 bits, and further seeds are counted on from it


def count(help: str, maximum: int = MOST) -> Any:
    """An option that takes a number from 1 to `maximum`."""
    return typer.Option(help=help, min=1, max=maximum)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(f"--{name}", help=help)


def trained_folder(help: str) -> Any:
    """An argument that names the folder of a trained model of some kind."""
    return typer.Argument(callback=option_checks.trained_model, help=f"A folder that train wrote, {help}")


Member = Annotated[
    str,
    typer.Argument(
        callback=option_checks.member, help="A member, as `kinformer list members` names it; or file.py:function."
    ),
]
Keywords = Annotated[
    list[str] | None, typer.Argument(callback=option_checks.keywords, help="Its keywords, like depth=2.")
]
Trained = Annotated[
    Path, typer.Argument(callback=option_checks.trained_model, help="A folder that train or compare wrote.")
]
Data = Annotated[
    str,
    typer.Option(
        callback=option_checks.data,
        help="text=stdlib; text=PATH,tokenizer=bpe:4096; pairs=, labelled=, series=, images=, sets=, offline=PATH; "
        "multitask=FOLDER; task=NAME,size=8; env=ID.",
    ),
]
Valid = Annotated[
    str | None,
    typer.Option(callback=option_checks.valid, help="Watch this file or folder, and learn from all of --data."),
]
OUT = "The folder to write to; made where it is missing."
Minutes = Annotated[float | None, typer.Option(help="Minutes of training, evaluation not counted.")]
Batch = Annotated[int, count("Windows, lanes, pairs or rows in a batch.")]
Length = Annotated[int, count("Tokens in a window or chunk; in a side of a pair, at most.")]
Split = Annotated[Literal["train", "valid", "test"], typer.Option(help="Which part of the data.")]
Window = Annotated[int | None, count("Tokens in a window or chunk; as in training unless given.")]
Rate = Annotated[float | None, typer.Option(help="The highest learning rate; the member's own unless given.")]
Schedule = Annotated[
    ScheduleName | None,
    typer.Option(is_eager=True, help="Shape of the learning-rate schedule after warm-up; default: the member's own."),
]  # known before --warmup is looked at
Warmup = Annotated[
    Any,  # a parser's type, which Typer takes from no annotation
    typer.Option(
        parser=option_checks.fraction_or_steps,
        callback=option_checks.warmup,
        metavar="PART|STEPS",
        help="Length of the warm-up: a fraction of the training, such as 0.05, or a number of steps, such as 4000; "
        "default: the member's own.",
    ),
]
Betas = Annotated[
    Any,
    typer.Option(
        parser=option_checks.betas,
        metavar="B1,B2",
        help="Adam's decay rates of the gradient and its square, such as 0.9,0.98; default: the member's own.",
    ),
]
Eps = Annotated[
    float | None,
    typer.Option(
        callback=option_checks.eps,
        help="Constant that Adam adds to its denominator, such as 1e-9; default: the member's own.",
    ),
]
Seed = Annotated[int, typer.Option(help="Of the weights, the windows and the samples.", min=0, max=LAST_SEED)]
Temperature = Annotated[
    float | None,
    typer.Option(help="Below 1 is more cautious, 1 as the model says; 0 always takes the likeliest.", min=0),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", is_eager=True, help="Write over a model or a comparison that is in --out.")
]
Resume = Annotated[
    bool, typer.Option("--resume", is_eager=True, help="Go on where an earlier command was stopped.")
]  # both are known before --out is looked at
Own = Annotated[
    str | None,
    typer.Option(callback=option_checks.member, help="file.py:function, where a member of your own built the model."),
]
Knn = Annotated[bool, flag("knn", "Look up the datastore that `kinformer knn-lm` tuned it on.")]
Datastore = Annotated[
    Path | None,
    typer.Option(callback=option_checks.datastore, help="Where that datastore, or spalm's own, is now; as --knn."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; the GPU where there is one.")]
Json = Annotated[bool, flag("json", "Write JSON to stdout, for programs.")]


BATCH, LENGTH, SEED = 4, 128, 0


def settings(ctx: typer.Context) -> dict[str, Any]:
    """Those of the options of a command that are settings of a training, as they were given."""
    return {name: ctx.params[name] for name in SETTINGS if name in ctx.params}
