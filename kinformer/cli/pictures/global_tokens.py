"""Global tokens before a text: the four pieces of who reads whom, global and long."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.attention import Attention
from kinformer.cli.pictures.support.layers import Call, attentions, calls
from kinformer.cli.pictures.support.panel import CELLS, Picture, grid, span
from kinformer.cli.pictures.support.spelled import longest
from kinformer.core.layer import Context
from kinformer.core.pattern import pairs
from kinformer.depth.global_tokens import GlobalTokens

KINDS = ("global to global", "global to long", "long to global", "long to long")


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The first layer of each GlobalTokens in an example."""
    if not isinstance(example, nn.Module):
        return
    for layer in example.modules():
        if isinstance(layer, GlobalTokens):
            yield _picture(layer, length)


def _picture(layer: GlobalTokens, length: int | None) -> Picture:
    inside = next(iter(attentions(layer).values()))
    probe = seen(layer, inside, 4)
    size, step = span(max(layer.n, longest(probe.pattern) // 2), length, 4 * CELLS // 3)
    call = seen(layer, inside, max(size - layer.n, 1))
    pos = call.queries.pos[:1]
    read = pairs(call.pattern, pos, pos, call.heads)[0].any(0)
    wide = torch.arange(len(read)) < layer.n
    kind = torch.where(wide[:, None], torch.where(wide, 1, 2), torch.where(wide, 3, 4))
    text = len(read) - layer.n
    note = f"{layer.n} global tokens, then {text} tokens of a text in {layer.n} equal segments"
    note += f"; a cell is {step} by {step}" if step > 1 else ""
    caption = f"the four pieces of global and long tokens{', a global token reading its own segment' * layer.hard}"
    return Picture(caption, KINDS, (grid("", torch.where(read, kind, 0), step),), note=note)


def seen(layer: GlobalTokens, inside: Attention, text: int) -> Call:
    """What the first mechanism inside is handed for a text of so many tokens."""
    x = torch.randn(1, text, layer.d)
    segment = (torch.arange(text) * layer.n // text)[None]
    given: list[Any] = []
    hook = inside.register_forward_pre_hook(lambda module, args: given.append(args))
    layer(x, None, Context.of(x).but(labels={"segment": segment}))
    hook.remove()
    return calls(inside, given[0][0], given[0][2])[0]
