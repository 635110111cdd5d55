"""The command `kinformer fill`: fill in the gaps of a text with a masked model."""

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from kinformer.cli.errors import print_warnings
from kinformer.cli.options import Device, Json, Own, RunPrecision
from kinformer.cli.support import option_checks
from kinformer.lab.errors import UserError, from_user
from kinformer.pages.terminal_safe_text import for_stream


def fill(
    folder: Annotated[
        Path,
        typer.Argument(
            callback=option_checks.masked_model,
            help="Folder with a trained model of a member that fills in tokens, such as bert.",
        ),
    ],
    text: Annotated[
        str, typer.Option(help=r"Text in which _ is a gap to fill in, \_ an underscore and \\ a backslash.")
    ],
    best: Annotated[int, typer.Option(help="Number of likeliest tokens to show for each gap of the text.", min=1)] = 5,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Fill in the gaps of a text with a masked model.

    \b
    Examples:
        kinformer fill runs/bert --text "the wh_le" --best 3

    Each gap, which is written _, is one token: a byte, unless the model was trained with a tokenizer. The command shows
    the likeliest tokens for each gap. Their probabilities are computed while all gaps are still empty. Below them it
    prints the text with all gaps filled in one after the other, the most certain first. So each token that is filled in
    helps to find the later ones.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.load_model import load_model
    from kinformer.decoding.byte_tokenizer import add_special_tokens, begin_tokens, tokenizer_of_model, warn_of_loss
    from kinformer.decoding.fill_blanks import blank_probabilities, encode_blanks, fill_blanks
    from kinformer.lab.text_continuation import INSTEAD

    model = load_model(folder, member, device, precision=precision)
    if model.reads != "masked":
        raise option_checks.no_blanks(INSTEAD.get(model.reads, "generate with it"))
    spelled = tokenizer_of_model(model)
    with from_user(ValueError):
        tokens = encode_blanks(os.fsencode(text), spelled.encode, model.mask).to(next(model.parameters()).device)
    whole_row = tokens.new_tensor(add_special_tokens(model, spelled, tokens.tolist()))
    before = len(begin_tokens(model, spelled, tokens.tolist()))
    if not bool((tokens == model.mask).any()):
        raise UserError(
            r"there is no gap to fill in the text; write _ for each missing token (an underscore itself is \_)"
        )
    with from_user(ValueError, LookupError), print_warnings():
        warn_of_loss(model, re.split(rb"\\?_", os.fsencode(text)))
        probabilities = blank_probabilities(model, whole_row)
        filled = fill_blanks(model, whole_row)[before : before + len(tokens)]
        whole = spelled.decode(filled.tolist()).decode(errors="replace")
    likely, best_tokens = probabilities.topk(min(best, probabilities.shape[1]))
    answers: list[list[dict[str, Any]]] = [
        [
            {"text": _shown(spelled.decode([token])), "token": token, "probability": probability}
            for token, probability in zip(*row, strict=True)
        ]
        for row in zip(best_tokens.tolist(), likely.tolist(), strict=True)
    ]
    if as_json:
        about = {"folder": str(folder), "text": text, "blanks": answers, "filled": whole}
        print(for_stream(json.dumps(about, ensure_ascii=False)))
        return
    for number, row in enumerate(answers, 1):
        print(f"gap {number}: " + ", ".join(f"{answer['text']!r} {answer['probability']:.3f}" for answer in row))
    print(for_stream(whole))


def _shown(text: bytes) -> str:
    return text.decode(errors="replace") if text.decode(errors="ignore") else "".join(f"\\x{byte:02x}" for byte in text)
