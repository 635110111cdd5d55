"""Conversions by the command `kinformer convert`: plan, progress on stderr, files and tables."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from kinformer.cli.options import WIDTH
from kinformer.cli.support.console import plain_console
from kinformer.cli.support.progress_bar import progress
from kinformer.cli.support.run_folder import make_folder
from kinformer.cli.support.table_as_text import warn_of_table
from kinformer.convert.support.conversion_plan import ConversionPlan, PlannedConversion, find_conversion, options_source
from kinformer.core.keywords import parse_keywords
from kinformer.core.model import display_name
from kinformer.lab.conversion.conversion_report import ConversionReport
from kinformer.lab.conversion.convert import convert
from kinformer.lab.data.resolve import resolve
from kinformer.lab.train.progress import ProgressDisplay, Status
from kinformer.lab.train.settings import Settings
from kinformer.pages.conversion_report import PAGE, cost_cells, save_conversion_report


def options_of(what: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a conversion from words such as "factor=4".

    what: the conversion.
    words: the words.

    Errors: ValueError for an unknown conversion; TypeError, in one line, for an unknown option or a wrong value.
    """
    return parse_keywords(options_source(what), words)


def print_plan(model: Any, what: str, words: Sequence[str], as_json: bool) -> None:
    """Print the plan of a conversion, without computing it.

    model: the trained model.
    what: the conversion.
    words: its options.
    as_json: True prints JSON.
    """
    options = options_of(what, words)
    if isinstance(options.get("keep"), int):
        options["keep"] = ()  # the layers are chosen by measurement
    plan = PlannedConversion.of(model, find_conversion(what, options)).plan
    if as_json:
        print(json.dumps(ConversionReport(display_name(model), plan).to_json()["plan"], indent=2))
    else:
        _write_plan(plan, sys.stdout)


def _write_plan(plan: ConversionPlan, file: Any) -> None:
    options = ", ".join(f"{name}={value}" for name, value in plan.options.items() if value not in ((), None))
    print(f"{plan.recipe}({options})\n{plan.promise_text}", file=file)
    _write_table(plan.fate_cells(), file)


def _write_table(cells: Sequence[Sequence[str]], file: Any) -> None:
    console = plain_console(file=file, width=None if file.isatty() else WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads, *rows = cells
    for place, head in enumerate(heads):
        table.add_column(head, no_wrap=bool(place), overflow="fold", justify="right" if place > 1 else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


@dataclass(frozen=True)
class ConversionJob:
    """A conversion as a command line gives it.

    what: the conversion.
    words: its options.
    data, valid: text for matching, adapting and measuring, and its validation file, as the user writes them; or None.
    out: the folder of the converted model.
    minutes, steps: length of the adaptation; both None for none.
    settings: settings of the adaptation; None for the default.
    teach: weight of the loss that compares predictions with the source's.
    seconds: time for measuring long rows, for each of the two models.
    seed: seed of the rows for matching.
    resume: continue the adaptation in the folder.
    """

    what: str
    words: Sequence[str]
    data: str | None
    valid: str | None
    out: Path
    minutes: float | None
    steps: int | None
    settings: Settings | None
    teach: float
    seconds: float
    seed: int
    resume: bool

    def run(self, model: Any, as_json: bool) -> None:
        """Convert a model, save it in the folder with its report, and print the results.

        model: the trained model.
        as_json: True prints JSON on stdout; the plan then goes to stderr.
        """
        options, file = options_of(self.what, self.words), sys.stderr if as_json else sys.stdout
        if self.data is not None:
            warn_of_table(resolve(self.data))
        make_folder(self.out)
        with stage_progress() as show:
            converted = convert(
                model,
                self.what,
                data=self.data,
                valid=self.valid,
                minutes=self.minutes,
                steps=self.steps,
                settings=self.settings,
                teach=self.teach,
                out=self.out,
                resume=self.resume,
                seconds=self.seconds,
                seed=self.seed,
                progress=show,
                show=StageDisplay(show),
                on_plan=lambda plan: _write_plan(plan, file),
                **options,
            )
            report: ConversionReport = converted.report
            save_conversion_report(report, self.out)
        if as_json:
            print(json.dumps(report.to_json(), indent=2))
        else:
            _write_results(report, self.out, file)


def _write_results(report: ConversionReport, out: Path, file: Any) -> None:
    if report.stages:
        print(f"\n{report.metric} on {report.data}", file=file)
        _write_table(report.quality_cells(), file)
    for name, costs in report.costs.items():
        print(f"\n{name}, reading a long row", file=file)
        _write_table(cost_cells(costs), file)
    print(f"\nsaved in {out}; {out / PAGE} shows all of it", file=file)


class StageDisplay(ProgressDisplay):
    """Progress of the adaptation, shown as a stage of the conversion.

    show: callback of `stage_progress`.
    """

    def __init__(self, show: Callable[..., None]) -> None:
        self.show = show

    def status(self, status: Status) -> None:
        """Show the step and the loss."""
        self.show("adapt", min(status.spent, 1.0), f"step {status.step:,}, loss {status.train:.3f}")


@contextmanager
def stage_progress() -> Iterator[Callable[..., None]]:
    """Return a callback that shows a stage, its finished fraction and a note on stderr."""
    with ExitStack() as stack:
        current, listener = "", None

        def show(stage: str, fraction: float, note: str = "") -> None:
            nonlocal current, listener
            if stage != current or listener is None:
                stack.close()
                current, listener = stage, stack.enter_context(progress(stage, 100, "%"))
            listener(round(100 * fraction), note)

        yield show
