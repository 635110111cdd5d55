"""Edges that a network chooses: what each query takes of each key, before any training."""

from collections.abc import Iterator
from typing import Any

from kinformer.nn.mechanisms.sac import SAC
from kinformer.nn.mechanisms.sac_published import PublishedSAC
from kinformer.pages.pictures.support.layers import attentions, calls, clustered, joined, weighed
from kinformer.pages.pictures.support.panel import CELLS, Picture, shades


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of each SAC, of either form, of its first head."""
    for place, layer in attentions(example).items():
        mechanism = layer.mechanism
        if not isinstance(mechanism, SAC | PublishedSAC):
            continue
        size, where = length or CELLS, joined([place])
        (call,) = calls(layer, clustered(size, layer.d))
        names = [str(n) for n in range(size)]
        name, each = type(mechanism).__name__, "for each" if isinstance(mechanism, SAC) else "per"
        caption = f"{name}{', ' + where if where else ''}, head 0: {mechanism.edges} chosen {each} token, and itself"
        panel = shades("", weighed(call)[0].detach().abs(), names, names)
        yield Picture(
            caption, (), (panel,), note="what a query takes of a key, before any training; tokens of five kinds"
        )
