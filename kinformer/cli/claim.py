"""`kinformer claim [NAME]`: measure what a paper claims, in about a minute, and say whether it holds."""

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from kinformer.cli.errors import FAILED, UserError, from_user, noted, refuse_useless
from kinformer.cli.support import parts, unrun
from kinformer.core.discover import modules, own_files, plugged
from kinformer.core.keywords import nearest

if TYPE_CHECKING:
    from kinformer.lab.claims.support.verdict import Claim

STYLES = {"holds": "green", "does not hold": "red", "not resolved": "yellow"}


def claim(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A claim; without one they are listed.")] = None,
    *,
    seeds: Annotated[int, typer.Option(help="How often it is measured.", min=2, max=1000)] = 3,
    out: Annotated[Path, typer.Option(help="A folder for NAME.png and NAME.txt.")] = Path("claims"),
) -> None:
    """Measure a claim of a paper: numbers against thresholds that were fixed before, a picture, a verdict.

    "holds": each effect is more than two standard errors of the seeds and meets its threshold. "does not hold": a
    threshold is missed by more than two. "not resolved": neither.
    """
    known = _known()
    if name is None:
        refuse_useless(ctx, "when claims are listed", "seeds", "out", instead="name a claim")
        widest = max(map(len, known)) + 2
        for key, says in known.items():
            print(f"{key:<{widest}}{says}")
        return
    if name not in known:
        raise UserError(f"there is no claim {name!r}{nearest(name, known, '; kinformer claim has them all')}")

    from kinformer.checkpoint.files import write
    from kinformer.cli.support.training import make_folder

    make_folder(out)
    with from_user(ImportError):
        found = modules("claims")[name].claim(range(seeds))
    lines = [*_lines(found), "", f"the picture is in {out / name}.png"]
    with from_user(OSError, code=FAILED):
        write(out / f"{name}.txt", ("\n".join(lines) + "\n").encode())
    _draw(found, out / f"{name}.png")
    _say(lines, found.verdict)


def _known() -> dict[str, str]:
    """Every claim with the first sentence of its file, which is read and not run; plugins are."""
    files = {name: file for name, file in own_files("claims").items() if unrun.defines(file, "claim")}
    with noted():
        others = {name: module for name, module in plugged("claims", files).items() if hasattr(module, "claim")}
    says = {name: unrun.first_sentence(file) for name, file in files.items()}
    return says | {name: parts.first_sentence(module) for name, module in others.items()}


def _lines(found: "Claim") -> list[str]:
    """The claim, each measure with its verdict, what else was found, and the verdict."""
    measures = [f"  {one.verdict:<15}{one.what}: {one.said}" for one in found.measures]
    told = ["", "beside it, without a threshold", *(f"  {what}: {text}" for what, text in found.told.items())]
    return [found.says, found.source, "", *measures, *(told if found.told else []), "", found.verdict]


def _say(lines: list[str], verdict: str) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False, markup=False)
    for line in lines:
        console.print(line, style=STYLES[verdict] if line == verdict else None)


def _draw(found: "Claim", path: Path) -> None:
    """Its pictures side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from kinformer.pages.saved import saved

    figure, row = pyplot.subplots(
        1, len(found.drawn), figsize=(4.8 * len(found.drawn), 4), layout="constrained", squeeze=False
    )
    for axes, (title, draw) in zip(row[0], found.drawn.items(), strict=True):
        draw(axes)
        axes.set_title(title, fontsize=10)
    figure.suptitle(fill(f"{found.says}: {found.verdict}", 55 * len(found.drawn)), fontsize=10)
    saved(figure, path)
    pyplot.close(figure)
