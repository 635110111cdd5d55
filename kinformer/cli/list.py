"""The command `kinformer list`: all parts and members by kind, and all papers."""

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from kinformer.cli.options import WIDTH, Json
from kinformer.cli.support.catalogue import list_entries, list_papers, with_member_facts
from kinformer.cli.support.topics import topic_name
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import UNJUDGED, kinds
from kinformer.lab.environments.support.make_environment import EXTRA, environment_folder
from kinformer.lab.errors import UserError

PAPERS = "papers"
PAGE = 110  # most characters of a line of papers


def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="Kind of parts to list, such as patterns; members for all named models, or papers for all papers; "
            "default: all kinds."
        ),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """List all parts, members and kinds of data, or all papers.

    A part is a building block of models, and a member is a named model. Each line has a kind, a name and one sentence
    about the part, member or kind of data. `kinformer show NAME` explains it. `kinformer list papers` lists every paper
    once, with its year, its link, and the members and parts that come from it.

    With --json, a member also has its paper, what it changes, the order of its cost, and the names of the claims
    about it, which `kinformer claim NAME` measures. In the order of cost, L is the number of tokens in a row, and
    other names are keywords of the member.

    \b
    Examples:
        kinformer list
        kinformer list members --json
        kinformer list papers
    """
    every_kind = (*sorted({*kinds(), *UNJUDGED, "data"}), *filter(None, [environment_folder()]))
    if kind == "environments" and not environment_folder():
        raise UserError(EXTRA)
    if kind is not None and kind not in (PAPERS, *every_kind):
        near = f"; `kinformer show {kind}` explains this topic" if topic_name(kind) else None
        raise UserError(f"there is no kind {kind!r}{near or suggest_names(kind, (*every_kind, PAPERS))}")
    if kind == PAPERS:
        entries = [
            {**entry.citation._asdict(), "parts": entry.parts, "members": entry.members} for entry in list_papers()
        ]
    else:
        plain = list_entries([kind] if kind else every_kind)
        entries = with_member_facts(plain) if as_json else plain
    if as_json:
        print(json.dumps(entries, indent=2))
    elif kind == PAPERS:
        _print_papers(entries)
    else:
        _print_table(entries)


def _print_papers(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print two lines or more for each paper: year, authors and link; then its members and parts."""
    authors = max(len(entry["authors"]) for entry in entries)
    width = min(PAGE, shutil.get_terminal_size((PAGE, 0)).columns)
    print(f"year  {'authors':<{authors}}  link\n      members and parts, which `kinformer show` explains\n")
    for entry in entries:
        print(f"{entry['year']}  {entry['authors']:<{authors}}  {entry['url']}")
        names = ", ".join([*(f"members/{name}" for name in entry["members"]), *entry["parts"]])
        print(textwrap.fill(names, width, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False))


def _print_table(entries: Sequence[Mapping[str, Any]]) -> None:
    # imported here, so that --help and early errors do not wait for rich
    from rich.table import Table

    from kinformer.cli.support.console import plain_console

    console = plain_console(width=None if plain_console().is_terminal else WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "name", "what it is"):
        table.add_column(heading, no_wrap=heading != "what it is", overflow="fold")
    for entry in entries:
        table.add_row(entry["kind"], entry["name"], entry["sentence"])
    console.print(table)
