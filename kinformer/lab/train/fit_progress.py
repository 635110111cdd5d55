"""show_fit: the progress of `fit`, a bar in a terminal and in a notebook."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kinformer.lab.train.progress import LineDisplay, LiveDisplay, ProgressDisplay


@contextmanager
def show_fit(progress: bool | None, name: str) -> Iterator[ProgressDisplay]:
    """Enter the display of a training in Python, on stderr.

    A terminal and a notebook show a bar. If the package ipywidgets is missing in a notebook, and in a pipe, lines are
    printed instead.

    progress: True shows the progress, False does not, and None shows it only in a terminal or a notebook.
    name: name of the training.
    """
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    is_seen = console.is_terminal or console.is_jupyter
    if progress is False or (progress is None and not is_seen):
        yield ProgressDisplay()
        return
    if console.is_dumb_terminal or not is_seen or (console.is_jupyter and find_spec("ipywidgets") is None):
        yield LineDisplay(console, name)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.fields[status]}", markup=False),
    )
    with Progress(*columns, console=console) as bars:
        yield LiveDisplay(bars, bars.add_task(name, total=1.0, status="starting"), name)
        bars.refresh()  # a notebook is not refreshed at the end
