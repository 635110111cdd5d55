"""`kinformer generate DIR`: let a trained model write."""

import codecs
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kinformer.cli.errors import UserError, from_user
from kinformer.cli.options import SEED, Own, Seed, Temperature


def generate(
    folder: Annotated[Path, typer.Argument(help="A folder that train or compare wrote.")],
    prompt: Annotated[str, typer.Option(help="The text to go on from.")],
    tokens: Annotated[int, typer.Option(help="How many bytes to write.", min=1)] = 200,
    temperature: Temperature = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest alone.", min=1)] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest that reach this probability.")] = None,
    seed: Seed = SEED,
    member: Own = None,
) -> None:
    """Let a trained model write on from a prompt.

    To stdout, as it comes; bytes that are no UTF-8 are shown as �.
    """
    if not prompt:
        raise UserError("the prompt is empty; give --prompt at least one character")
    from kinformer.cli.training import device
    from kinformer.cli.writing import write
    from kinformer.discover import find_member
    from kinformer.train.checkpoint import load

    with from_user(LookupError, ImportError, ValueError, OSError):
        model = load(folder, member=find_member(member) if member else None).to(device())
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def say(token: int) -> None:
        print(decoder.decode(bytes([min(token, 255)])), end="", flush=True)

    print(prompt, end="", flush=True)
    drawing: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    last = b""
    try:
        with from_user(ValueError, LookupError):
            written, milliseconds = write(model, prompt.encode(), tokens, hear=say, **drawing)
        last = written[-1:]
    finally:
        print(decoder.decode(last, final=True))
    print(f"{tokens} bytes, {milliseconds:.1f} ms each", file=sys.stderr)
