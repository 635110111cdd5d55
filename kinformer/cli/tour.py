"""The command `kinformer tour`: a few minutes that show the library, and one page with the results."""

from pathlib import Path
from typing import Annotated

import typer

from kinformer.cli import options
from kinformer.cli.errors import print_warnings
from kinformer.cli.support import option_checks
from kinformer.lab.errors import UserError, from_user

LEAST = 1.0  # minutes below which the models learn too little to show


def tour(
    data: Annotated[
        str,
        typer.Option(
            callback=option_checks.data,
            help="Text to train on, as text=PATH; default: the source code of Python's library.",
        ),
    ] = "text=stdlib",
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Length of the tour in minutes; default: enough for gpt to be ahead of gzip -9, at most 9.", min=LEAST
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help=options.OUT)] = Path("runs/tour"),
    seed: options.Seed = options.SEED,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the tour that the folder --out already holds.")
    ] = False,
) -> None:
    """Draw mechanisms, train three models, and write one HTML page.

    The tour draws twelve attention mechanisms. It trains three models at equal time, and compares them with gzip -9 on
    the same text. It times dense, windowed and linear attention up to 16,384 tokens. It draws the attention maps of the
    trained gpt, and lets all models write. It measures the speed of this machine first, and says how long everything
    takes: 4 to 9 minutes. The page is index.html in the folder --out. The trained models are in the same folder.

    \b
    Examples:
        kinformer tour
        # On a text of your own, in 3 minutes
        kinformer tour --data text=PATH --minutes 3 --out runs/mine
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    import sys

    from kinformer.cli.support.progress_bar import progress
    from kinformer.cli.support.run_folder import claimed_folder, make_folder, refuse_occupied
    from kinformer.lab.data.resolve import resolve
    from kinformer.lab.data.text import TextData
    from kinformer.lab.member_choice import parse_member_text
    from kinformer.lab.tour.tour import CONTENDERS, plan_tour, take_tour
    from kinformer.pages.tour import PAGE, is_tour, verdicts, write_tour

    if (out / PAGE).exists() and not overwrite:
        found = "an earlier tour" if is_tour(out / PAGE) else f"a file {PAGE}"
        raise UserError(f"{out} holds {found}, which would be overwritten. Give another --out, or --overwrite")
    for contender in CONTENDERS:
        refuse_occupied(out / contender.name, parse_member_text(contender.member).build(seed), overwrite)
    with from_user(ValueError, OSError, ImportError), print_warnings():
        text = resolve(data).read()
    if not isinstance(text, TextData):
        raise UserError(f"wrong --data for the tour: got {data}, expected a text, such as text=PATH")
    print("measuring the speed of this machine ...", file=sys.stderr)
    with claimed_folder(out, within=True), from_user(ValueError, LookupError, OSError), print_warnings():
        make_folder(out)
        plan = plan_tour(text, minutes, seed)
        print(plan, file=sys.stderr)
        with progress("tour", round(plan.total), "seconds", recent=None) as on_progress:
            results = take_tour(text, plan, out, seed, on_progress)
        page = write_tour(results, out)
    for sentence in verdicts(results):
        print(sentence)
    print(f"the page of the tour: {page}")
