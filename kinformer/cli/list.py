"""`kinformer list [KIND]`: what there is."""

from typing import Annotated

import typer

from kinformer.cli.errors import UserError, from_user
from kinformer.cli.options import WIDTH
from kinformer.cli.support.parts import first_sentence
from kinformer.discover import kinds, modules
from kinformer.environments.support.making import played_in, refuse_without_gymnasium
from kinformer.keywords import nearest


def list_parts(
    kind: Annotated[str | None, typer.Argument(help="One kind alone, such as patterns or members.")] = None,
) -> None:
    """List what there is, by kind."""
    from rich.console import Console
    from rich.table import Table

    known = (*kinds(), *filter(None, [played_in()]))
    if kind == "environments":
        with from_user(ImportError):
            refuse_without_gymnasium()
    if kind is not None and kind not in known:
        raise UserError(f"there is no kind {kind!r}{nearest(kind, known)}")
    console = Console(width=None if Console().is_terminal else WIDTH, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "name", "what it is"):
        table.add_column(heading, no_wrap=heading != "what it is", overflow="fold")
    for one in [kind] if kind else known:
        with from_user(ImportError):
            found = modules(one)
        for name, module in found.items():
            table.add_row(one, name, first_sentence(module))
    console.print(table)
