"""Filling: a masked language model fills in the masked tokens of a text."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.autocast import at_least_float32
from kinformer.core.eval_mode import evaluating
from kinformer.models.support.sliding_reader import must_slide, read_in_windows

ROUNDS = 64  # largest number of rounds to fill a text


def blank_probabilities(model: Any, tokens: Int[Tensor, " T"]) -> Float[Tensor, "N V"]:
    """Return the token probabilities at each hidden position, all predicted from the unfilled text.

    model: a masked language model.
    tokens: text in which the id `model.mask` stands for each masked token.

    Errors: ValueError if the probabilities are NaN, and for a model whose weights have no head.
    """
    if model.headless:
        raise ValueError(
            "this model cannot fill gaps: its weights have no head. Give weights with one, or train it on text"
        )
    hidden = tokens == model.mask
    must_slide(model, len(tokens))
    with evaluating(model):
        y = read_in_windows(model.logits, tokens[None], model.window).y[0]
    probabilities = at_least_float32(y[hidden]).softmax(-1)
    if bool(probabilities.isnan().any()):
        raise ValueError("the logits of a masked token are NaN: the weights are damaged or too large")
    return probabilities


def fill_blanks(model: Any, tokens: Int[Tensor, " T"]) -> Int[Tensor, " T"]:
    """Return the text with every masked token filled in, starting with the most certain predictions.

    Each filled token is visible to later ones. Tokens are filled one at a time. If more than 64 are hidden, several are
    filled at a time, so that the model reads the text at most 64 times.

    model: a masked language model.
    tokens: text in which the id `model.mask` stands for each masked token.

    Source: easy first, as Ghazvininejad et al., 2019, arXiv:1904.09324, decode.
    """
    tokens = tokens.clone()
    each = -(-int((tokens == model.mask).sum()) // ROUNDS)
    while bool((places := (tokens == model.mask).nonzero()[:, 0]).numel()):
        sure, likeliest = blank_probabilities(model, tokens).max(-1)
        surest = sure.topk(min(each, len(places))).indices
        tokens[places[surest]] = likeliest[surest]
    return tokens


def encode_blanks(text: bytes, encode: Any, mask: int) -> Int[Tensor, " T"]:
    r"""Return the tokens of a text in which each `_` is a gap of one token for the model to fill in.

    In the text, `\_` is an underscore and `\\` is a backslash.

    text: bytes of the text.
    encode: function from bytes to tokens.
    mask: id that stands for a masked token.
    """
    tokens, piece, escaped = list[int](), bytearray(), False
    for byte in text:
        if escaped:
            piece += bytes([byte]) if byte in b"_\\" else bytes([ord("\\"), byte])
            escaped = False
        elif byte == ord("\\"):
            escaped = True
        elif byte == ord("_"):
            tokens += [*encode(bytes(piece)), mask]
            piece.clear()
        else:
            piece.append(byte)
    return torch.tensor([*tokens, *encode(bytes(piece) + b"\\" * escaped)], dtype=torch.long)
