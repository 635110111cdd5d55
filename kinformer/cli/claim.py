"""The command `kinformer claim`: measure claims of papers in about a minute each."""

import inspect
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinformer.cli.errors import refuse_useless
from kinformer.cli.support.static_source import first_sentences
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import modules
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.claims.support.claim_report import ClaimReport

STYLES = {"holds": "green", "does not hold": "red", "not resolved": "yellow"}
PAGE = "index.html"


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
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Train longer, by more training steps: this many minutes in place of the default time, which is about "
            "a minute on two fast cores.",
            min=1,
            max=600,
        ),
    ] = None,
    all_claims: Annotated[
        bool, typer.Option("--all", help="Measure all claims that have no report in --out yet, and write a page.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for the picture NAME.png and the reports NAME.txt and NAME.json of a claim.")
    ] = Path("claims"),
) -> None:
    """Measure a claim of a paper, and report whether it holds.

    \b
    Examples:
        # List all claims
        kinformer claim
        # Measure one of them
        kinformer claim bigbird_paths --seeds 5
        # Measure all; the same command goes on after an interruption
        kinformer claim --all --out claims

    Each measurement has a threshold that was fixed beforehand. The command writes NAME.txt and NAME.json with the
    numbers and NAME.png with a picture, and prints a verdict. The verdict "holds" means that each measured effect
    exceeds two standard errors over the seeds and meets its threshold. "does not hold" means that a threshold is missed
    by more than two standard errors. "not resolved" means that neither is the case.
    """
    sentences = first_sentences("claims", "claim")
    if all_claims:
        if name is not None:
            raise UserError(f"--all measures every claim, but the claim {name!r} is given too. Leave out one of them")
        refuse_useless(ctx, "with --all", "minutes", instead="name a claim")
        _measure_all(sorted(sentences), seeds, out)
        return
    if name is None:
        refuse_useless(ctx, "when claims are listed", "seeds", "minutes", "out", instead="name a claim, or give --all")
        widest = max(map(len, sentences)) + 2
        for key, sentence in sentences.items():
            print(f"{key:<{widest}}{sentence}")
        return
    if name not in sentences:
        raise UserError(
            f"there is no claim {name!r}{suggest_names(name, sentences, '; `kinformer claim` lists them all')}"
        )
    _print(_measure(name, seeds, minutes, out), out)


def _measure(name: str, seeds: int, minutes: float | None, out: Path) -> "ClaimReport":
    """Measure a claim, and write its report and its picture."""
    # imported here, so that --help and early errors do not wait for torch or Matplotlib
    from kinformer.cli.support.run_folder import make_folder
    from kinformer.lab.claims.support.claim_report import make_report, write_report
    from kinformer.pages.plots import save_plots

    with from_user(ImportError):
        module = modules("claims")[name]
    sizes = {} if minutes is None else {"steps": _steps(name, module, minutes)}
    make_folder(out)
    began = monotonic()
    result = module.claim(range(seeds), **sizes)
    report = make_report(name, result, monotonic() - began, minutes)
    with from_user(OSError, code=FAILED):
        save_plots(result.plots, f"{result.statement}: {result.verdict}", out / f"{name}.png")
        write_report(report, out)
    return report


def _steps(name: str, module: Any, minutes: float) -> int:
    """Return the training steps for a number of minutes, in proportion to the default steps and their minutes."""
    default = inspect.signature(module.claim).parameters.get("steps")
    if default is None or not isinstance(default.default, int):
        raise UserError(f"--minutes has no effect on the claim {name!r}, which does not train; leave it out")
    return round(default.default * max(1.0, minutes / getattr(module, "MINUTES", 1)))


def _measure_all(names: list[str], seeds: int, out: Path) -> None:
    """Measure the claims that have no report yet, and write the page after each."""
    from kinformer.checkpoint.atomic_files import write
    from kinformer.cli.support.console import plain_console
    from kinformer.cli.support.progress_bar import progress
    from kinformer.cli.support.run_folder import make_folder
    from kinformer.lab.claims.support.claim_report import read_reports
    from kinformer.pages.claims_page import claims_page

    make_folder(out)  # before hours of measurements, which would have no place
    console = plain_console(soft_wrap=True)
    reports = read_reports(out, names)
    missing = {name: "not measured yet" for name in names if name not in reports}
    waiting = list(missing)
    with progress("measuring claims", len(waiting), "claims", recent=None) as tell:
        for done, name in enumerate(waiting):
            tell(done, name)
            try:
                reports[name] = _measure(name, seeds, None, out)
                del missing[name]
            except Exception as error:  # the others are measured all the same, and the page says why this one is not
                missing[name] = f"{type(error).__name__}: {error}"
            with from_user(OSError, code=FAILED):
                write(out / PAGE, claims_page({name: reports[name] for name in names if name in reports}, missing))
        tell(len(waiting))
    for name in names:
        verdict = reports[name].verdict if name in reports else f"not measured: {missing[name]}"
        console.print(f"{name:<{max(map(len, names)) + 2}}{verdict}", style=STYLES.get(verdict))
    console.print(f"the page is {out / PAGE}")
    if missing:
        raise UserError(f"{len(missing)} claims could not be measured; the page says why", code=FAILED)


def _print(report: "ClaimReport", out: Path) -> None:
    from kinformer.cli.support.console import plain_console

    console = plain_console(soft_wrap=True)
    for line in [*report.lines, "", f"the picture is in {out / report.name}.png"]:
        console.print(line, style=STYLES[report.verdict] if line == report.verdict else None)
