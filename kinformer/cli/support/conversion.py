"""Conversions by the command `kinformer convert`: plan, progress on stderr, files and tables."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.table import Table

from kinformer.checkpoint.model_files import METRICS
from kinformer.cli.errors import ended_by
from kinformer.cli.options import WIDTH
from kinformer.cli.support.console import plain_console
from kinformer.cli.support.progress_bar import progress
from kinformer.cli.support.run_folder import make_folder
from kinformer.cli.support.table_as_text import warn_of_table
from kinformer.convert.support.conversion_plan import ConversionPlan, find_conversion, options_source, plan_conversion
from kinformer.core.keywords import parse_keywords
from kinformer.core.model import display_name
from kinformer.lab.conversion.conversion_report import ConversionReport
from kinformer.lab.conversion.convert import convert
from kinformer.lab.data.resolve import resolve
from kinformer.lab.errors import UserError
from kinformer.lab.train.progress import ProgressDisplay, Status
from kinformer.pages.conversion_report import PAGE, PICTURE, cost_cells, save_conversion_report


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
    plan = plan_conversion(model, what, options_of(what, words)).plan
    if as_json:
        print(json.dumps(ConversionReport(display_name(model), plan).to_json()["plan"], indent=2))
    else:
        _write_plan(plan, sys.stdout)


def _write_plan(plan: ConversionPlan, file: Any) -> None:
    print(f"{plan.title}\n{plan.promise_text}", file=file)
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


def convert_into(
    model: Any, what: str, words: Sequence[str], data: str | None, out: Path, as_json: bool, **settings: Any
) -> None:
    """Convert a model, save it in a folder with its report, and print the results.

    model: the trained model.
    what: the conversion.
    words: its options.
    data: text for matching, adapting and measuring, as the user writes it; or None.
    out: the folder.
    as_json: True prints JSON on stdout; the plan then goes to stderr.
    settings: further arguments of `kf.convert`.
    """
    options, file = options_of(what, words), sys.stderr if as_json else sys.stdout
    if data is not None:
        warn_of_table(resolve(data))
    if data is None and (lack := find_conversion(what, options).without_data()):
        print(f"warning: {lack}; give --data text=PATH", file=sys.stderr)
    missing = [place for place in (out, *out.parents) if not place.exists()]
    make_folder(out)

    shown: ConversionPlan | None = None

    def begin(plan: ConversionPlan) -> None:
        nonlocal shown
        shown = plan
        _write_plan(plan, file)
        for name in (PAGE, PICTURE):  # of an earlier conversion in this folder
            (out / name).unlink(missing_ok=True)

    try:
        with stage_progress() as show:
            converted = convert(
                model,
                what,
                data=data,
                out=out,
                progress=show,
                show=StageDisplay(show),
                on_plan=begin,
                **settings,
                **options,
            )
            report: ConversionReport = converted.report
            save_conversion_report(report, out)
    except KeyboardInterrupt as stop:
        if (out / METRICS).is_file():
            raise UserError(
                f"stopped in the adaptation; the model is kept in {out}. Continue with --resume", ended_by(stop)
            ) from stop
        raise
    finally:
        with suppress(OSError):  # a folder with files stays
            for place in missing:
                place.rmdir()
    if settings.get("steps") and report.adaptation["steps"] > settings["steps"]:
        print(f"nothing was trained: {report.adaptation['steps']:,} steps are done already", file=sys.stderr)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        if report.plan != shown:  # data have decided options
            print(f"\n{report.plan.title}\n{report.plan.promise_text}", file=file)
        _write_results(report, out, file)


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

    def note(self, text: str) -> None:
        """Print the text as a line, such as the weights that a loss trains."""
        print(f"adapt: {text}", file=sys.stderr)


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
