"""`kinformer generate DIR`: let a trained model write."""

import codecs
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kinformer.cli.errors import UserError, from_user, noted
from kinformer.cli.options import SEED, Own, Temperature


def generate(
    folder: Annotated[Path, typer.Argument(help="A folder that train or compare wrote.")],
    prompt: Annotated[str, typer.Option(help="The text to go on from.")],
    tokens: Annotated[int, typer.Option(help="How many bytes to write.", min=1)] = 200,
    temperature: Temperature = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest alone.", min=1)] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest that reach this probability: above 0, up to 1.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the samples.", min=0)] = SEED,
    member: Own = None,
) -> None:
    """Let a trained model write on from a prompt.

    To stdout, as it comes; bytes that are no UTF-8 are shown as �.
    """
    if not prompt:
        raise UserError("the prompt is empty; give --prompt at least one character")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"--top-p {top_p:g} is no probability above 0 and up to 1; 1 draws from all")
    from kinformer.cli.writing import decodes, write

    model = _loaded(folder, member)
    with from_user(ValueError, LookupError):
        if not decodes(model, len(prompt.encode()) + tokens):
            print("this model has no state, so each token reads the whole text again", file=sys.stderr)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def say(token: int) -> None:
        print(decoder.decode(bytes([min(token, 255)])), end="", flush=True)

    print(prompt, end="", flush=True)
    drawing: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    try:
        with from_user(ValueError, LookupError), noted():
            _, milliseconds = write(model, prompt.encode(), tokens, hear=say, **drawing)
    finally:
        print(decoder.decode(b"", final=True))
    print(f"{tokens} bytes, {milliseconds:.1f} ms each", file=sys.stderr)


def _loaded(folder: Path, member: str | None) -> Any:
    """The model, where it can be loaded; what `load` warns of goes to stderr, a line each."""
    from kinformer.cli.training import device
    from kinformer.cli.wanted import member_named
    from kinformer.train.checkpoint import MemberNeeded, load

    with from_user(ValueError, OSError), noted():
        function = member_named(member) if member else None
        try:
            model = load(folder, member=function).to(device())
        except MemberNeeded as error:
            raise UserError(
                f"the model in {folder} was built by {error.name!r} of {error.file}: "
                f"give --member {error.file}:{error.name}, with the path of the file"
            ) from error
    return model
