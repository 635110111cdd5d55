"""`kinformer show WORDS`: a part, a member, a public function, an expression or a topic, drawn."""

from pathlib import Path
from typing import Annotated

import typer

from kinformer.cli.errors import refuse_no_folder, refuse_useless
from kinformer.cli.options import count, flag
from kinformer.lab.errors import UserError

MOST = 2048
KINDS = (".png", ".svg", ".pdf")


def show(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WORDS...",
            help="A name that `kinformer list` has, a public function such as attend, an expression such as "
            "'Causal() & Band(64)', file.py:Name, or a topic such as sparse; then a member's keywords, such as d=64.",
        ),
    ],
    length: Annotated[int | None, count("How many positions to draw; as many as show what there is.", MOST)] = None,
    cost: Annotated[bool, flag("cost", "Measure time and memory against length, here and now.")] = False,
    out: Annotated[Path | None, typer.Option(help="A file for the pictures: .png, .svg or .pdf.")] = None,
) -> None:
    """Show a part or member, with its patterns drawn.

    The class one came for, its equation, its arguments, and pictures of who reads whom; helpers last.
    """
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support.name_lookup import Topic, find_pages, refuse_unknown

    if out is not None:
        _check(out)
    first = next((n for n, word in enumerate(words) if n and _is_keyword(word)), len(words))
    name, keywords = " ".join(words[:first]), tuple(words[first:])
    refuse_unknown(name)

    from kinformer.cli.support.show_page import print_pages, save_pictures

    pages = find_pages(name, keywords)
    if isinstance(pages, Topic):
        refuse_useless(ctx, f"on the topic {name!r}", "cost", instead="name one of its parts")
    images = print_pages(pages, length, cost)
    if not images:
        refuse_useless(ctx, f"on {name!r}, which has no picture", "length")
    if out is not None:
        save_pictures(" ".join(words), images, out)
        print(f"\nthe pictures are in {out}")


def _is_keyword(word: str) -> bool:
    """Is a word `name=value`, and no expression?"""
    before, equals, _ = word.partition("=")
    return bool(equals) and before.strip().isidentifier()


def _check(out: Path) -> None:
    """Refuse a file that could not be written before anything is made."""
    if out.suffix.lower() not in KINDS:
        raise UserError(f"--out {out} is no picture; give a file that ends in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    refuse_no_folder(out)
