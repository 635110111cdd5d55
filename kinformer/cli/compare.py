"""`kinformer compare MEMBER ...`: members side by side on one text, the same minutes each."""

import sys
from typing import Annotated

import typer

from kinformer.cli.options import BATCH, LENGTH, SEED, Batch, Data, Length, Out, Rate, Seed
from kinformer.cli.wanted import folder_name, spelled, titles


def compare(
    members: Annotated[list[str], typer.Argument(help="Members; keywords in brackets: gpt 'gpt(depth=2, heads=4)'.")],
    data: Data,
    minutes: Annotated[float, typer.Option(help="Minutes of training for each, evaluation not counted.")],
    out: Out,
    batch: Batch = BATCH,
    length: Length = LENGTH,
    lr: Rate = None,
    seed: Seed = SEED,
) -> None:
    """Train members side by side, and compare them.

    One after the other, the same minutes each; then a table, a picture of the curves, and what each of them writes.
    In the folder: results.json with the same numbers, curves.png, and a folder per member that `generate` reads.
    """
    wanted = [spelled(member) for member in members]

    from rich.console import Console

    from kinformer.cli.errors import UserError
    from kinformer.cli.picture import draw
    from kinformer.cli.results import Results, compressed, lengths, measured, settled
    from kinformer.cli.training import learn, make_folder, prepare, readable, spare

    job = prepare(data, None, minutes, batch, length, lr, seed)
    results = Results(settled(job, minutes), compressed(job), [])
    named = list(zip(titles(wanted), wanted, strict=True))
    for title, one in named:
        model = one.build(seed)
        readable(model, job)
        spare(out / folder_name(title), model)
        if not model.predicts_next:
            raise UserError(f"{one.text!r} fills in hidden bytes, and compare takes members that predict the next one")
    make_folder(out)
    for place, (title, one) in enumerate(named):
        folder = out / folder_name(title)
        model = one.build(seed)
        history = learn(f"{title} ({place + 1} of {len(wanted)})", model, job, folder)
        print(f"{title}: writing {lengths(model)[1]} bytes, and timing them ...", file=sys.stderr)
        results.members.append(measured(title, one, history, job, folder))
        results.save(out / "results.json")
    draw(results, out / "curves.png")
    results.show(Console(highlight=False), out)
