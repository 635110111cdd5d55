"""The command `kinformer list`: all parts and members, by kind."""

from typing import Annotated

import typer

from kinformer.cli.options import WIDTH
from kinformer.cli.support.static_source import first_sentences
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import kinds
from kinformer.lab.environments.support.make_environment import EXTRA, environment_folder
from kinformer.lab.errors import UserError


def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="Kind of parts to list, such as patterns, or members for all named models; default: all kinds."
        ),
    ] = None,
) -> None:
    """List all parts and members, by kind.

    A part is a building block of models, and a member is a named model. Each line has a kind, a name and one sentence
    about the part or member. `kinformer show NAME` explains it.

    \b
    Examples:
        kinformer list
        kinformer list members
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from rich.table import Table

    from kinformer.cli.support.console import plain_console

    every_kind = (*kinds(), *filter(None, [environment_folder()]))
    if kind == "environments" and not environment_folder():
        raise UserError(EXTRA)
    if kind is not None and kind not in every_kind:
        raise UserError(f"there is no kind {kind!r}{suggest_names(kind, every_kind)}")
    console = plain_console(width=None if plain_console().is_terminal else WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "name", "what it is"):
        table.add_column(heading, no_wrap=heading != "what it is", overflow="fold")
    for folder in [kind] if kind else every_kind:
        for name, sentence in first_sentences(folder).items():
            table.add_row(folder, name, sentence)
    console.print(table)
