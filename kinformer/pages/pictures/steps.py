"""Pictures of adaptive depth: the steps until each token halts, or the layers until each token exits."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.core.layer import Layer
from kinformer.core.model import Writer
from kinformer.pages.pictures.support.picture_panels import CELLS, Picture, shades

MOST = 2 * CELLS  # most tokens; each is a column
WORDS = {"steps": "step", "exit": "layer"}  # name of a report with one value per token, and the name of a row


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield a picture of how many steps or layers each token uses before it halts or exits.

    The steps are measured on random input.

    A row is a step or a layer, and a column is a token.

    example: a language model or a layer that reports the steps or exits of its tokens.
    length: number of tokens, at most 48 and at most the window of the model; None for 24.
    """
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
            note = f"{source}, untrained weights: {counts.mean():.1f} {WORDS[last]}s per token on average"
            caption = f"number of {WORDS[last]}s that each token takes"
            yield Picture(caption, (), (panel,), line=WORDS[last], column="token", note=note)


def needs_nothing(layer: nn.Module) -> bool:
    """Whether a module is a layer that needs no input besides x.

    layer: the module.
    """
    return isinstance(layer, Layer) and not any(not want.optional for want in layer.wants)
