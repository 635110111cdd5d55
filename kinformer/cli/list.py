"""`kinformer list [KIND]`: what there is."""

from typing import Annotated

import typer

from kinformer.cli.errors import UserError, noted
from kinformer.cli.options import WIDTH
from kinformer.cli.support import parts, unrun
from kinformer.core.discover import kinds, load_plugins, part_files
from kinformer.core.keywords import nearest
from kinformer.lab.environments.support.make_environment import EXTRA, environment_folder


def list_parts(
    kind: Annotated[str | None, typer.Argument(help="One kind alone, such as patterns or members.")] = None,
) -> None:
    """List what there is, by kind."""
    from rich.console import Console
    from rich.table import Table

    known = (*kinds(), *filter(None, [environment_folder()]))
    if kind == "environments" and not environment_folder():
        raise UserError(EXTRA)
    if kind is not None and kind not in known:
        raise UserError(f"there is no kind {kind!r}{nearest(kind, known)}")
    console = Console(width=None if Console().is_terminal else WIDTH, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "name", "what it is"):
        table.add_column(heading, no_wrap=heading != "what it is", overflow="fold")
    for one in [kind] if kind else known:
        files = part_files(one)
        for name, file in files.items():
            table.add_row(one, name, unrun.first_sentence(file))
        with noted():
            others = load_plugins(one, files)
        for name, module in others.items():
            table.add_row(one, name, parts.first_sentence(module))
    console.print(table)
