"""The command `kinformer show`: explain a part, member, function, expression or topic, with pictures."""

from pathlib import Path
from typing import Annotated

import typer

from kinformer.cli.errors import refuse_no_folder, refuse_useless
from kinformer.cli.options import Device, RunPrecision, count, flag
from kinformer.lab.errors import UserError

MOST = 2048
KINDS = (".png", ".svg", ".pdf")


def show(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WORDS...",
            help="Name from `kinformer list`; or a public function such as attend, a pattern such as 'Causal() & "
            "Band(64)', file.py:Name, or a topic such as sparse. Keywords of a member, such as d=64, may follow.",
        ),
    ],
    length: Annotated[
        int | None, count("Number of token positions to draw; default: enough to show the attention pattern.", MOST)
    ] = None,
    cost: Annotated[
        bool,
        flag("cost", "Also measure the time and memory of the part or member at several row lengths, on this machine."),
    ] = False,
    device: Device = None,
    precision: RunPrecision = "fp32",
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the pictures: .png, .svg or .pdf; default: they are only drawn with characters in the "
            "terminal."
        ),
    ] = None,
) -> None:
    """Explain a part or member, and draw its attention pattern.

    A part is a building block of models, and a member is a named model. The page has the description, the equation and
    the arguments, and pictures of the keys that each query attends to. Helper classes of the part come last.

    \b
    Examples:
        kinformer show band
        # A member with other keywords than the defaults
        kinformer show longformer window=8
        # An expression of patterns, also as a picture
        kinformer show 'Causal() & (Band(8) | Strided(8))' --out pattern.png
        # A topic: which parts and members there are
        kinformer show sparse
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.name_lookup import Topic, find_pages, refuse_unknown

    if not cost:
        refuse_useless(ctx, "without --cost", "device", "precision")
    if out is not None:
        _check(out)
    first = next((n for n, word in enumerate(words) if n and _is_keyword(word)), len(words))
    name, keywords = " ".join(words[:first]), tuple(words[first:])
    refuse_unknown(name)

    from kinformer.cli.support.load_model import device_and_autocast
    from kinformer.cli.support.show_page import print_pages, save_pictures

    measured_on = device_and_autocast(device, precision) if cost else None
    pages = find_pages(name, keywords)
    if isinstance(pages, Topic):
        refuse_useless(ctx, f"on the topic {name!r}", "cost", instead="name one of its parts")
    images = print_pages(pages, length, measured_on)
    if not images:
        refuse_useless(ctx, f"on {name!r}, which has no picture", "length")
    if out is not None:
        save_pictures(" ".join(words), images, out)
        print(f"\nthe pictures are in {out}")


def _is_keyword(word: str) -> bool:
    """Return True if a word has the form `name=value`, unlike an expression."""
    before, equals, _ = word.partition("=")
    return bool(equals) and before.strip().isidentifier()


def _check(out: Path) -> None:
    """Raise UserError for a picture file that cannot be written, before anything is computed."""
    if out.suffix.lower() not in KINDS:
        raise UserError(
            f"--out {out} is not a picture; give a file that ends in {', '.join(KINDS[:-1])} or {KINDS[-1]}"
        )
    refuse_no_folder(out)
