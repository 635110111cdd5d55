"""The command `kinformer claim`: measure a claim of a paper in about a minute."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kinformer.cli.errors import refuse_useless
from kinformer.cli.support.static_source import first_sentences
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import modules
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.claims.support.verdict import Claim

STYLES = {"holds": "green", "does not hold": "red", "not resolved": "yellow"}


def claim(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a claim of a paper that this command can measure; without it, all claims are listed."
        ),
    ] = None,
    *,
    seeds: Annotated[
        int,
        typer.Option(help="Number of times that the claim is measured, each time with another seed.", min=2, max=1000),
    ] = 3,
    out: Annotated[
        Path, typer.Option(help="Folder for the picture NAME.png and the report NAME.txt of the claim.")
    ] = Path("claims"),
) -> None:
    """Measure a claim of a paper, and report whether it holds.

    \b
    Examples:
        # List all claims
        kinformer claim
        # Measure one of them
        kinformer claim bigbird_paths --seeds 5

    Each measurement has a threshold that was fixed beforehand. The command writes NAME.txt with the numbers and
    NAME.png with a picture, and prints a verdict. The verdict "holds" means that each measured effect exceeds two
    standard errors over the seeds and meets its threshold. "does not hold" means that a threshold is missed by more
    than two standard errors. "not resolved" means that neither is the case.
    """
    sentences = first_sentences("claims", "claim")
    if name is None:
        refuse_useless(ctx, "when claims are listed", "seeds", "out", instead="name a claim")
        widest = max(map(len, sentences)) + 2
        for key, sentence in sentences.items():
            print(f"{key:<{widest}}{sentence}")
        return
    if name not in sentences:
        raise UserError(
            f"there is no claim {name!r}{suggest_names(name, sentences, '; `kinformer claim` lists them all')}"
        )

    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.checkpoint.atomic_files import write
    from kinformer.cli.support.run_folder import make_folder
    from kinformer.pages.plots import save_plots

    make_folder(out)
    with from_user(ImportError):
        result = modules("claims")[name].claim(range(seeds))
    lines = [*_lines(result), "", f"the picture is in {out / name}.png"]
    with from_user(OSError, code=FAILED):
        write(out / f"{name}.txt", ("\n".join(lines) + "\n").encode())
    title = f"{result.statement}: {result.verdict}"
    save_plots(result.plots, title, out / f"{name}.png")
    _print(lines, result.verdict)


def _lines(result: "Claim") -> list[str]:
    """Return the lines of the report: the claim, each measure with its verdict, further facts, and the verdict."""
    measures = [f"  {measure.verdict:<15}{measure.quantity}: {measure.summary}" for measure in result.measures]
    facts = ["", "further measurements, not judged", *(f"  {name}: {text}" for name, text in result.facts.items())]
    return [result.statement, result.source, "", *measures, *(facts if result.facts else []), "", result.verdict]


def _print(lines: list[str], verdict: str) -> None:
    from kinformer.cli.support.console import plain_console

    console = plain_console(soft_wrap=True)
    for line in lines:
        console.print(line, style=STYLES[verdict] if line == verdict else None)
