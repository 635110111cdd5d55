"""Conversions by the command `kinformer convert`: plan, progress on stderr, files and tables."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from kinformer.bridge.save import save
from kinformer.checkpoint.atomic_files import write
from kinformer.cli.options import WIDTH
from kinformer.cli.support.console import plain_console
from kinformer.cli.support.progress_bar import progress
from kinformer.cli.support.run_folder import claimed_folder, make_folder
from kinformer.cli.support.table_as_text import warn_of_table
from kinformer.convert.support.conversion_plan import ConversionPlan, PlannedConversion, find_conversion, find_recipe
from kinformer.core.keywords import parse_keywords
from kinformer.core.model import display_name
from kinformer.lab.conversion.conversion_report import ConversionReport
from kinformer.lab.conversion.convert import convert
from kinformer.lab.data.resolve import resolve
from kinformer.pages.conversion_report import PAGE, cost_cells, save_conversion_report

RECORD = "conversion.json"


def options_of(what: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a conversion from words such as "factor=4".

    what: the conversion.
    words: the words.

    Errors: ValueError for an unknown conversion; TypeError, in one line, for an unknown option or a wrong value.
    """
    return parse_keywords(find_recipe(what)[0], words)


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


def convert_into(
    model: Any,
    what: str,
    words: Sequence[str],
    data: str | None,
    valid: str | None,
    out: Path,
    seconds: float,
    seed: int,
    as_json: bool,
) -> None:
    """Convert a model, save it in a folder with its report, and print the results.

    model: the trained model.
    what: the conversion.
    words: its options.
    data, valid: text for matching and measuring, as the user writes it, and its validation file; or None.
    out: the folder.
    seconds: time for measuring long rows, for each of the two models.
    seed: seed of the rows for matching.
    as_json: True prints JSON on stdout; the plan then goes to stderr.
    """
    options, file = options_of(what, words), sys.stderr if as_json else sys.stdout
    if data is not None:
        warn_of_table(resolve(data))
    make_folder(out)
    with claimed_folder(out), stage_progress() as show:
        converted = convert(
            model,
            what,
            data=data,
            valid=valid,
            seconds=seconds,
            seed=seed,
            progress=show,
            on_plan=lambda plan: _write_plan(plan, file),
            **options,
        )
        report: ConversionReport = converted.report
        save(converted, out)
        write(out / RECORD, f"{json.dumps(report.to_json(), indent=2)}\n".encode())
        save_conversion_report(report, out)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
        return
    if report.stages:
        print(f"\n{report.metric} on {report.data}")
        _write_table(report.quality_cells(), file)
    for name, costs in report.costs.items():
        print(f"\n{name}, reading a long row")
        _write_table(cost_cells(costs), file)
    print(f"\nsaved in {out}; {out / PAGE} shows all of it")


@contextmanager
def stage_progress() -> Iterator[Callable[[str, float], None]]:
    """Return a callback that shows a stage and its finished fraction on stderr."""
    with ExitStack() as stack:
        current, listener = "", None

        def show(stage: str, fraction: float) -> None:
            nonlocal current, listener
            if stage != current or listener is None:
                stack.close()
                current, listener = stage, stack.enter_context(progress(stage, 100, "%"))
            listener(round(100 * fraction))

        yield show
