"""Keys that are made of several tokens: where they stand, and who reads them."""

from collections.abc import Iterator
from typing import Any

import torch

from kinformer.cli.pictures.support.layers import attentions, calls, joined
from kinformer.cli.pictures.support.panel import CELLS, Panel, Picture, grid
from kinformer.core.pattern import pairs


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """Layers whose queries read fewer keys than there are tokens, and no memory; those that read alike in one."""
    alike: dict[str, tuple[list[str], Panel]] = {}
    for place, layer in attentions(example).items():
        if layer.cross or layer.memory is not None:
            continue
        for call in calls(layer, torch.randn(1, length or CELLS, layer.d)):
            if call.itself or not call.keys.own:
                continue
            q, k = call.queries.pos, call.keys.pos
            read = pairs(call.pattern, q, k, call.heads)[0, 0]
            panel = grid("", read.long())._replace(columns=tuple(str(n) for n in k[0, 0].tolist()))
            places = alike.setdefault(f"{call.pattern} {panel.columns}", ([], panel))[0]
            places.append(place.partition(",")[0])  # of several in a layer the layer
    for places, panel in alike.values():
        where = joined(places)
        caption = f"{where + ': ' if where else ''}who reads which of the shortened keys"
        yield Picture(caption, (), (panel,), note="a column is a key, under the position at which it stands")
