"""The command `kinformer claim`: measure claims of papers, each in half a minute to about 20 minutes."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from kinformer.cli.errors import refuse_useless
from kinformer.cli.support.static_source import first_sentences
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import modules
from kinformer.lab.claims.support.claim_report import (
    ClaimReport,
    claim_settings,
    make_report,
    measured_verdict,
    read_reports,
    write_report,
)
from kinformer.lab.errors import FAILED, UserError, from_user

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
            help="Training time in minutes; default: the claim's own time, between half a minute and about 20 minutes. "
            "The number of training steps grows in proportion. Values below the claim's own time are refused.",
            min=1,
            max=600,
        ),
    ] = None,
    all_claims: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Measure all claims that have no report in --out yet, and write a page. Reports with another number "
            "of seeds or with --minutes are kept and named.",
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for the picture NAME.png and the reports NAME.txt and NAME.json of a claim.")
    ] = Path("claims"),
) -> None:
    """Measure a claim of a paper, and report whether it holds.

    \b
    Examples:
        # List all claims with their verdicts
        kinformer claim
        # Measure one of them
        kinformer claim bigbird_paths --seeds 5
        # Measure all; the same command goes on after an interruption
        kinformer claim --all --out claims

    The command writes NAME.txt and NAME.json with the numbers and NAME.png with a picture, and prints a verdict. Each
    threshold was fixed before the reported run.

    The verdict "holds" means that every mean over the seeds meets its threshold and differs from "no effect" by more
    than two standard errors. "does not hold" means that a mean misses its threshold by more than two standard errors,
    or that all values of a measure are equal and show no effect. Otherwise the verdict is "not resolved". A mean that
    must be near a number meets this only if the mean with two standard errors stays within the allowed distance. A
    measure with a single value has no error. Two standard errors of three seeds cover the true mean in 82% of cases, so
    a few of the verdicts are chance.
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
        _print_list(sentences)
        return
    if name not in sentences:
        raise UserError(
            f"there is no claim {name!r}{suggest_names(name, sentences, '; `kinformer claim` lists them all')}"
        )
    _print(_measure(name, seeds, minutes, out), out)


def _print_list(sentences: dict[str, str]) -> None:
    """Print the name, the verdict and the sentence of each claim."""
    print("Claims of papers with the verdicts of our measurements; run one to measure it here\n")
    verdicts = {name: measured_verdict(name) for name in sentences}
    first, second = (max(map(len, column)) + 2 for column in (sentences, verdicts.values()))
    for name, sentence in sentences.items():
        print(f"{name:<{first}}{verdicts[name]:<{second}}{sentence}")


def _measure(name: str, seeds: int, minutes: float | None, out: Path) -> ClaimReport:
    """Measure a claim, and write its report and its picture."""
    # imported here, so that --help and early errors do not wait for torch or Matplotlib
    from kinformer.cli.support.run_folder import make_folder
    from kinformer.lab.machine import describe_machine
    from kinformer.pages.plots import save_plots

    with from_user(ImportError):
        module = modules("claims")[name]
    sizes = {} if minutes is None else {"steps": _steps(name, module, minutes)}
    make_folder(out)
    began = monotonic()
    result = module.claim(range(seeds), **sizes)
    settings = claim_settings(module, sizes)
    report = make_report(name, result, monotonic() - began, minutes, describe_machine(), range(seeds), settings)
    with from_user(OSError, code=FAILED):
        write_report(report, out)  # first, because a picture without numbers is worth less than the reverse
        save_plots(result.plots, f"{result.statement}: {result.verdict}", out / f"{name}.png")
    return report


def _steps(name: str, module: Any, minutes: float) -> int:
    """Return the training steps for a number of minutes, in proportion to the default steps and their minutes."""
    default = inspect.signature(module.claim).parameters.get("steps")
    if default is None or not isinstance(default.default, int):
        raise UserError(
            f"the claim {name!r} has no adjustable number of training steps: got --minutes {minutes:g}, expected no "
            "--minutes. Leave it out"
        )
    own = getattr(module, "MINUTES", 1)
    if minutes < own:
        raise UserError(
            f"--minutes can only lengthen the training of the claim {name!r}: got {minutes:g}, expected at least "
            f"{own:g}. Leave it out for the claim's own time"
        )
    return round(default.default * minutes / own)


def _measure_all(names: list[str], seeds: int, out: Path) -> None:
    """Measure the claims that have no report yet, and write the page after each."""
    from kinformer.checkpoint.atomic_files import write
    from kinformer.cli.support.console import plain_console
    from kinformer.cli.support.progress_bar import progress
    from kinformer.cli.support.run_folder import make_folder
    from kinformer.pages.claims_page import claims_page

    make_folder(out)  # before hours of measurements, which would have no place
    console = plain_console(soft_wrap=True)
    reports = read_reports(out, names)
    missing = {name: "not measured yet" for name in names if name not in reports}
    waiting = list(missing)

    def write_page() -> None:
        with from_user(OSError, code=FAILED):
            write(out / PAGE, claims_page({name: reports[name] for name in names if name in reports}, missing))

    for line in _kept_reports(reports, seeds):
        console.print(line)
    with progress("measuring claims", len(waiting), "claims", recent=None) as tell:
        for done, name in enumerate(waiting):
            tell(done, name)
            try:
                reports[name] = _measure(name, seeds, None, out)
                del missing[name]
            except Exception as error:  # the others are measured all the same, and the page says why this one is not
                missing[name] = f"{type(error).__name__}: {error}"
            write_page()
        tell(len(waiting))
    write_page()  # once more, because no claim may have been missing, and a claim may have been measured singly
    for name in names:
        verdict = reports[name].verdict if name in reports else f"not measured: {missing[name]}"
        console.print(f"{name:<{max(map(len, names)) + 2}}{verdict}", style=STYLES.get(verdict))
    console.print(f"the page is {out / PAGE}")
    if missing:
        raise UserError(f"{len(missing)} claims could not be measured; the page says why", code=FAILED)


def _kept_reports(reports: dict[str, ClaimReport], seeds: int) -> Iterator[str]:
    """Yield a line for each report that was made with another number of seeds or with --minutes."""
    for name, report in reports.items():
        count = max((len(measure.values) for measure in report.measures), default=0)  # some measures need one value
        settings = [] if count in (1, seeds) else [f"{count} seeds"]
        settings += [] if report.minutes is None else [f"--minutes {report.minutes:g}"]
        if settings:
            yield f"the report of {name} with {' and '.join(settings)} is kept; delete {name}.json to measure it again"


def _print(report: ClaimReport, out: Path) -> None:
    from kinformer.cli.support.console import plain_console

    console = plain_console(soft_wrap=True)
    for line in [*report.lines, "", *report.conditions, f"the picture is in {out / report.name}.png"]:
        console.print(line, style=STYLES[report.verdict] if line == report.verdict else None)
