"""Misuse of the first calls that a user writes: each is refused in one line that says what to give."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

import kinformer as kf
from tests.unhooked import refusals, unhooked

ADVICE = (
    "ValueError: Attention got x of shape [2, 4, 6], expected width d=8",
    "ValueError: x is of type str, expected a tensor [B, T, D]; pass a single row as x[None]",
    "ValueError: x is of type str, expected a tensor [B, T, D]; pass a single row as x[None]",
    "ValueError: x has shape [2, 4], expected a tensor [B, T, D]; pass a single row as x[None]",
    "ValueError: x has shape [2, 4, 8, 1], expected a tensor [B, T, D]; pass a single row as x[None]",
    "TypeError: state is a bool tensor; pass a mask of real tokens as ctx=Context.of_sequence(x, mask)",
    "TypeError: ctx is of type Tensor, expected Context. Give Context.of_sequence(x, mask)",
    "TypeError: the second argument is the state; pass the context as layer(x, None, ctx)",
    "ValueError: x is of type Out, expected a tensor [B, T, D]; pass the value of the other layer, out.y",
    "TypeError: a layer returns Out, which holds more than a tensor; add its value: x + layer(x).y",
    "TypeError: Causal is a class; write Causal(...) & Band(left=3, right=None)",
    "TypeError: Causal is a class; write Causal(...) | Band(left=3, right=None)",
    "ValueError: pattern is of the type Tensor; give a pattern, such as Causal() & Band(64); a mask of padding goes to "
    "Context.of_sequence(x, mask)",
    "ValueError: pattern is of the type ndarray; give a pattern, such as Causal() & Band(64)",
    "ValueError: layers[0] is of the type Linear; give a layer, such as Attention(...), MLP(d) or a block of both",
    "TypeError: tokens are of type str, expected a tensor of integers [B, T]",
    "TypeError: the prompt is of type str, expected token ids [B, T]; encode text first",
    "ValueError: the data 'notes.txt' does not have the form KIND=WHERE; write ",
)


def misuse() -> list[str]:
    layer, model = kf.Attention(kf.QKV(8, 2), kf.Softmax(kf.Causal())), kf.gpt(d=8, depth=1, heads=2, vocab=10)
    x = torch.randn(2, 4, 8)
    mask: Any = torch.ones(2, 4, dtype=torch.bool)
    text: Any = "text"
    path: Any = Path("notes.txt")
    linear: Any = nn.Linear(3, 3)
    array: Any = mask.numpy()
    ctx = kf.Context.of_sequence(x)
    return refusals(
        [
            lambda: layer(x[..., :6]),
            lambda: layer(text),
            lambda: layer(text, None, ctx),
            lambda: layer(x[..., 0], None, ctx),
            lambda: layer(x[..., None], None, ctx),
            lambda: layer(x, mask),
            lambda: layer(x, None, mask),
            lambda: layer(x, kf.Context.of_sequence(x)),
            lambda: layer(layer(x)),
            lambda: x + layer(x),
            lambda: kf.Causal & kf.Band(3),
            lambda: kf.Causal | kf.Band(3),
            lambda: kf.Softmax(mask),
            lambda: kf.Softmax(array),
            lambda: kf.Stack([linear]),
            lambda: model(text),
            lambda: kf.generate(model, text, 5),
            lambda: kf.fit(model, path, steps=1),
        ]
    )


def test_misuse_is_refused_in_one_line_with_advice() -> None:
    texts = unhooked(f"{__name__}:{misuse.__name__}")
    for text, advice in zip(texts, ADVICE, strict=True):
        assert (text.startswith(advice) if advice.endswith("write ") else text == advice) and "\n" not in text
