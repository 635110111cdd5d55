"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kinformer.cli.support import option_checks
from kinformer.cli.support.lora_option import parse_lora
from kinformer.core.training_recipe import ScheduleName

MOST = 10**12  # largest value of any count; commands that need memory check that separately
WIDTH = 200  # columns of a table that is not printed to a terminal, so that no cell is cut
SETTINGS = (
    *("batch", "length", "lr", "schedule", "warmup", "betas", "eps", "seed"),
    *("clip", "accumulate", "precision", "checkpointing", "compile", "lora"),
)
LAST_SEED = 2**62  # PyTorch takes 64 bits, and commands add small numbers to the seed


def count(help: str, maximum: int = MOST, minimum: int = 1) -> Any:
    """Return an option that takes an integer from `minimum` to `maximum`.

    help: its help text.
    maximum: the largest value.
    minimum: the smallest value.
    """
    return typer.Option(help=help, min=minimum, callback=_at_most(maximum))


def _at_most(maximum: int) -> Any:
    """A callback that refuses larger values; as an option of Typer, the limit would stand in every help text."""

    def check(value: int | None) -> int | None:
        if value is not None and value > maximum:
            raise typer.BadParameter(f"{value} is above {maximum:,}.")
        return value

    return check


def flag(name: str, help: str) -> Any:
    """Return an option whose name on the command line is given, such as a switch without a value.

    name: the option's name without dashes.
    help: its help text.
    """
    return typer.Option(f"--{name}", help=help)


def trained_folder(help: str) -> Any:
    """Return an argument that names the folder of a trained model.

    help: end of the help text, such as "of a member that forecasts, such as informer."
    """
    return typer.Argument(callback=option_checks.trained_model, help=f"Folder with a trained model {help}")


Member = Annotated[
    str,
    typer.Argument(
        callback=option_checks.member,
        help="Name of a member, which is a named model (`kinformer list members` shows all), or file.py:function.",
    ),
]
Keywords = Annotated[
    list[str] | None,
    typer.Argument(
        callback=option_checks.keywords,
        help="Sizes and parts of the member, such as depth=2; `kinformer show MEMBER` explains them.",
    ),
]
Trained = Annotated[
    Path,
    typer.Argument(
        callback=option_checks.trained_model,
        help="Folder of a model of kinformer or of transformers, a .gguf file, or hf:ORG/NAME.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        callback=option_checks.data,
        help="Data as KIND=PLACE, with options after commas: text=stdlib; text=PATH,tokenizer=bpe:4096; "
        "pairs=FILE.tsv; series=FILE.csv; task=NAME. `kinformer show data` explains all kinds.",
    ),
]
Series = Annotated[
    str,
    typer.Option(
        callback=option_checks.data,
        help="Data as series=FILE.csv, with options after commas; `kinformer show data/series` explains them.",
    ),
]
Valid = Annotated[
    str | None,
    typer.Option(callback=option_checks.valid, help="File or folder with validation data; default: a part of --data."),
]
OUT = "Folder of the models and results, new or empty."
Minutes = Annotated[
    float | None, typer.Option(help="Minutes of each training, without its measurements on validation data.")
]
Batch = Annotated[int, count("Rows in each training batch; with env=ID, number of parallel environments.")]
RowBatch = Annotated[int, count("Rows in each training batch.")]  # of commands that read no environments or pairs
RowLength = Annotated[int, count("Tokens in each row.")]
Length = Annotated[int, count("Tokens in each row; longer pairs are left out. With env=ID: steps between two updates.")]
Split = Annotated[
    Literal["train", "valid", "test"], typer.Option(help="Part of the data to use: for training, validation or test.")
]
Window = Annotated[int | None, count("Number of tokens that the model reads at a time; default: as in training.")]
Rate = Annotated[float | None, typer.Option(help="Highest learning rate; default: the rate that the member sets.")]
Schedule = Annotated[
    ScheduleName | None,
    typer.Option(is_eager=True, help="Learning-rate schedule after the warm-up; default: set by the member."),
]  # eager: --warmup is checked against it
Warmup = Annotated[
    Any,  # the parser sets the type; Typer ignores the annotation
    typer.Option(
        parser=option_checks.fraction_or_steps,
        callback=option_checks.warmup,
        metavar="PART|STEPS",
        help="Warm-up of the learning rate: a fraction of the training, or a number of steps; default: set by the "
        "member.",
    ),
]
Betas = Annotated[
    Any,
    typer.Option(
        parser=option_checks.betas,
        metavar="B1,B2",
        help="Decay rates of Adam's two means, such as 0.9,0.98; default: set by the member.",
    ),
]
Eps = Annotated[
    float | None,
    typer.Option(
        callback=option_checks.eps, help="Constant in Adam's denominator, such as 1e-9; default: set by the member."
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        help="Seed of the initial weights, training batches and samples.", min=0, callback=_at_most(LAST_SEED)
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="Sampling temperature: below 1 favours likely tokens, 1 keeps the model's probabilities, 0 always takes "
        "the likeliest token.",
        min=0,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", is_eager=True, help="Replace the model or comparison in --out; other files there stay."
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", is_eager=True, help="Continue the training or comparison in --out.")
]  # eager, both: --out is checked against them
Own = Annotated[
    str | None,
    typer.Option(
        callback=option_checks.member, help="Your own member function that built the model, as file.py:function."
    ),
]
Knn = Annotated[bool, flag("knn", "Let the model search the datastore that `kinformer knn-lm` tuned it with.")]
Datastore = Annotated[
    Path | None,
    typer.Option(
        callback=option_checks.datastore, help="New folder of the model's datastore, if it has moved; implies --knn."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="Device: cpu, cuda or cuda:1; default: the GPU if there is one, else cpu.")
]
Precision = Annotated[
    Any,  # one of the names in `Settings.precision`; the parser returns it, and Typer ignores the annotation
    typer.Option(
        parser=option_checks.training_precision,
        metavar="float32|bf16",
        help="Number format of matrix products; bf16 is bfloat16 by autocast.",
    ),
]
Lora = Annotated[
    Any,  # a LoRA; the parser returns it, and Typer ignores the annotation
    typer.Option(
        parser=parse_lora,
        metavar="rank=N",
        help="Train low-rank changes of the attention matrices of --from, and merge them in the end, such as rank=8. "
        "Further values: alpha=16, layers=all, train=NAME (weights to train in full, with *; repeatable).",
    ),
]
TensorBoard = Annotated[
    bool, flag("tensorboard", "Write TensorBoard events into the subfolder tensorboard of the run.")
]
Wandb = Annotated[bool, flag("wandb", "Record the run with Weights & Biases; WANDB_MODE=offline needs no account.")]
WandbProject = Annotated[
    str | None, typer.Option(help="Project of --wandb; default: WANDB_PROJECT, or else kinformer.")
]
RunPrecision = Annotated[
    Any,  # one of the names in `Settings.precision`; the parser returns it, and Typer ignores the annotation
    typer.Option(
        callback=option_checks.precision,
        metavar="float32|bf16|fp16",
        help="Number format of matrix products; bf16 and fp16 by autocast.",
    ),
]
Json = Annotated[bool, flag("json", "Print the result as JSON, for programs.")]


BATCH, LENGTH, SEED = 4, 128, 0
PRECISION: Literal["float32", "bf16"] = "float32"


def settings(ctx: typer.Context) -> dict[str, Any]:
    """Return the values of a command's training options, such as --batch and --lr, by name.

    ctx: Typer's context of the command.
    """
    return {name: ctx.params[name] for name in SETTINGS if name in ctx.params}


def typed(ctx: typer.Context) -> set[str]:
    """Return the names of the options that the user has typed, such as "lr".

    ctx: Typer's context of the command.
    """
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
