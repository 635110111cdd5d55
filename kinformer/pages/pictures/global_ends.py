"""Rows whose last block is global: what each layer reads by its own pattern, and what the row's end adds."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.core.keyed import KeyValueMechanism
from kinformer.core.layer import Context
from kinformer.core.pattern import pairs
from kinformer.nn.depth.global_ends import GlobalEnds
from kinformer.pages.pictures.support.layers import attentions, calls, positions
from kinformer.pages.pictures.support.panel import NARROW, Panel, Picture, grid, layers_of_kinds, span
from kinformer.pages.pictures.support.spelled import longest

KINDS, LAYERS = ("the layer's own pattern", "the last block, global"), 4


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The first layers inside each GlobalEnds of an example, side by side where they differ."""
    for layer in example.modules() if isinstance(example, nn.Module) else ():
        if isinstance(layer, GlobalEnds):
            inside = attentions(layer.layer)
            keyed = [one.mechanism for one in inside.values() if isinstance(one.mechanism, KeyValueMechanism)]
            longer = 2 * max(longest(one.pattern) for one in keyed)
            size, step = span(max(longer, 3 * layer.block), length, NARROW)
            panels: list[Panel] = []
            for place, one in inside.items():
                panel = grid(place, _kinds(layer, one, size), step)
                if len(panels) < LAYERS and not any(torch.equal(panel.level, other.level) for other in panels):
                    panels.append(panel)
            note = f"{size} positions in blocks of {layer.block}" + (
                f"; a cell is {step} by {step}" if step > 1 else ""
            )
            yield Picture("who reads whom in a row whose last block is global", KINDS, tuple(panels), note=note)


def _kinds(layer: GlobalEnds, inside: Any, size: int) -> torch.Tensor:
    """The pairs of a layer's first head in a row of so many positions, by why they are read."""
    x = torch.randn(1, size, layer.d)
    given: list[Any] = []
    hook = inside.register_forward_pre_hook(lambda module, args: given.append(args))
    layer(x, None, Context.of(x))
    hook.remove()
    (call,) = calls(inside, given[0][0], given[0][2])
    at = positions(x)[:, None]
    whole, own = (pairs(one, at, at, range(1))[0, 0] for one in (call.pattern, call.mechanism.pattern))
    return layers_of_kinds([own, whole & ~own])
