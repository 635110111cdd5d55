"""How far each token goes: the steps that it takes before it halts, the layers that it goes through before it exits."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.core.layer import Layer
from kinformer.core.model import Writer
from kinformer.pages.pictures.support.picture_panels import CELLS, Picture, shades

MOST = 2 * CELLS  # tokens, a column each
WORDS = {"steps": "step", "exit": "layer"}  # what layers report per token, and what a line is then


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """For every report of an example: a line for each step, a column for each token, filled while it goes on."""
    if not isinstance(example, Writer | Layer):
        return
    example.eval()
    length = min(length or CELLS, MOST, getattr(example, "window", None) or MOST)
    if isinstance(example, Writer):
        tokens, inputs = example.inputs(example.sample(1, length, 0))
        extra: dict[str, Any] = dict(inputs)
        out, source = example.logits(tokens, **extra), "random tokens"
    elif needs_nothing(example):
        out, source = example(2 * torch.randn(1, length, example.d)), "random vectors"
    else:
        return
    for name, value in out.aux.items():
        last = name.rpartition(".")[2]
        if last in WORDS and value.dim():
            counts = value[0].detach().float()
            n = torch.arange(1, int(counts.max()) + 1)
            level = (counts[None] - n[:, None] + 1).clamp(0, 1)
            lines = tuple(f"{WORDS[last]} {k}" for k in n.tolist())
            panel = shades("", level, lines)
            note = f"{source}, weights as drawn first: {counts.mean():.1f} {WORDS[last]}s a token on average"
            caption = f"how many {WORDS[last]}s each token takes"
            yield Picture(caption, (), (panel,), line=WORDS[last], column="token", note=note)


def needs_nothing(layer: nn.Module) -> bool:
    """Can it be called with x alone?"""
    return isinstance(layer, Layer) and not any(not want.optional for want in layer.wants)
