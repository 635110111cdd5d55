"""The command `kinformer read`: read a long text once, and save the model's decoding state."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinformer.cli.errors import print_warnings, suggest_command
from kinformer.cli.options import Device, Json, Own, RunPrecision, Trained, flag
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 16  # bytes that are read from a file at a time
CHUNK = 512  # tokens that a model reads at a time


def read(
    folder: Trained,
    file: Annotated[Path, typer.Argument(help="Text file that the model reads.")],
    save: Annotated[
        Path, typer.Option(help="File into which the decoding state of the model after the text is written.")
    ],
    overwrite: Annotated[bool, flag("overwrite", "Replace the file --save if it exists.")] = False,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Read a long text once, and save the model's decoding state.

    \b
    Examples:
        kinformer read runs/xl long.txt --save long.state
        kinformer generate runs/xl --state long.state --prompt "Who"

    The decoding state is all that the model keeps of a text, such as keys and values. `kinformer generate --state FILE`
    continues from it, as often as you like, with the same result as if the model had read the text again. The state
    works only with the weights that made it. The file has the safetensors format, with a JSON header.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.checkpoint import decompress as unpacked
    from kinformer.checkpoint.atomic_files import existing_path
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.memory_limits import refuse_no_room
    from kinformer.cli.support.progress_bar import progress
    from kinformer.core.mechanism import NoState
    from kinformer.core.state import state_bytes
    from kinformer.decoding.byte_tokenizer import tokenizer_of_model
    from kinformer.decoding.prefill import prefill as read_once
    from kinformer.decoding.saved_state import save_reading
    from kinformer.lab.train.progress import clock

    with from_user(OSError, ValueError):
        size = 0 if existing_path(str(file), "give a text file").is_dir() else unpacked.size(file)
    if file.is_dir() or not size:
        raise UserError(f"{file} is {'a folder' if file.is_dir() else 'empty'}; give a file that contains text")
    model = load_model(folder, member, device, precision=precision)
    _refuse_place(save, overwrite)
    encode, began = tokenizer_of_model(model).encode, monotonic()
    with from_user(ValueError):
        length = _length(file, size, encode)
    refuse_no_room(model, 1, length)
    try:
        with from_user(ValueError, NoState), print_warnings(), progress("reading", length, "tokens") as tell:
            reading = read_once(model, _chunks(model, file), length, tell)
        save_reading(reading, model, save)
    except OSError as error:
        raise UserError(str(error), FAILED) from error
    seconds, bytes_kept = monotonic() - began, state_bytes(reading.state)
    if as_json:
        record = {"folder": str(folder), "file": str(file), "bytes": size, "tokens": reading.tokens, "state": str(save)}
        print(json.dumps({**record, "state_bytes": bytes_kept, "seconds": round(seconds, 3)}, indent=2))
        return
    print(
        f"{file}: {reading.tokens:,} tokens read in {clock(seconds)}; {bytes_kept:,} bytes of decoding state in {save}"
    )
    go_on = suggest_command("generate", folder, "--state", save, "--prompt", "TEXT", member=member)
    print(f"to continue from it: {go_on}", file=sys.stderr)


def _refuse_place(save: Path, overwrite: bool) -> None:
    """Raise UserError if the file cannot be written or may not be replaced, before a long reading starts."""
    if save.is_dir():
        raise UserError(f"{save} is a folder; --save must name a file")
    if save.exists() and not overwrite:
        raise UserError(f"{save} already exists; give another --save, or --overwrite")
    if not os.access(save.absolute().parent, os.W_OK):
        raise UserError(f"cannot write to {save.absolute().parent}; --save must name a file in an existing folder")


def _length(file: Path, size: int, encode: Callable[[bytes], list[int]]) -> int:
    """Estimate the number of tokens in a file from its first bytes."""
    from kinformer.checkpoint.decompress import text

    block = next(text(file), b"")[:BLOCK]
    return math.ceil(size * len(encode(block)) / max(len(block), 1))


def _chunks(model: Any, file: Path) -> "Iterator[Tensor]":
    """Yield the tokens of a file in chunks, without loading the whole file into memory."""
    import torch

    from kinformer.checkpoint.decompress import text
    from kinformer.decoding.byte_tokenizer import tokenize_blocks

    blocks = (chunk[first : first + BLOCK] for chunk in text(file) for first in range(0, len(chunk), BLOCK))
    for tokens in tokenize_blocks(model, blocks, str(file)):
        yield from torch.tensor([tokens], dtype=torch.long).split(CHUNK, 1)
