"""Global nodes before a text: the four pieces of who reads whom, global and long."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.core.layer import Context
from kinformer.core.pattern import pairs
from kinformer.nn.attention import Attention
from kinformer.nn.depth.global_nodes import GlobalNodes
from kinformer.pages.pictures.support.layers import Call, attentions, calls
from kinformer.pages.pictures.support.panel import CELLS, Picture, grid, span
from kinformer.pages.pictures.support.spelled import longest

KINDS = ("global to global (g2g)", "global to long (g2l)", "long to global (l2g)", "long to long (l2l)")


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The first layer of each GlobalNodes in an example."""
    if not isinstance(example, nn.Module):
        return
    for layer in example.modules():
        if isinstance(layer, GlobalNodes):
            yield _picture(layer, length)


def _picture(layer: GlobalNodes, length: int | None) -> Picture:
    inside = next(iter(attentions(layer).values()))
    size, step = span(
        max(layer.n, max(longest(one.pattern) for one in seen(layer, inside, 4)) // 2), length, 4 * CELLS // 3
    )
    found = seen(layer, inside, max(size - layer.n, 1))
    pos = found[0].queries.pos[:1]
    # a layer may read its pieces by several mechanisms; a pair is read where one of them reads it
    read = torch.stack([pairs(one.pattern, pos, pos, one.heads)[0].any(0) for one in found]).any(0)
    wide = torch.arange(len(read)) < layer.n
    kind = torch.where(wide[:, None], torch.where(wide, 1, 2), torch.where(wide, 3, 4))
    hard = getattr(layer, "hard", ())
    caption = "the four pieces of global and long tokens" + (f", hard in {' and '.join(hard)}" if hard else "")
    text = len(read) - layer.n
    note = f"{layer.n} global tokens, then {text} tokens of a text in {min(layer.n, text)} segments of one length"
    note += f"; a cell is {step} by {step}" if step > 1 else ""
    return Picture(caption, KINDS, (grid("", torch.where(read, kind, 0), step),), note=note)


def seen(layer: GlobalNodes, inside: Attention, text: int) -> list[Call]:
    """What the mechanisms inside are handed for a text of so many tokens."""
    x = torch.randn(1, text, layer.d)
    segment = (torch.arange(text) * layer.n // text)[None]
    given: list[Any] = []
    hook = inside.register_forward_pre_hook(lambda module, args: given.append(args))
    layer(x, None, Context.of(x).replace(labels={"segment": segment}))
    hook.remove()
    return calls(inside, given[0][0], given[0][2])
