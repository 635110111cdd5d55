"""Queries that read: of all in a row the few that are chosen, beside those that get a mean of the values."""

from collections.abc import Iterator
from typing import Any

import torch

from kinformer.core.pattern import pairs
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.pages.pictures.support.layers import attentions, calls, clustered, joined
from kinformer.pages.pictures.support.panel import CELLS, Picture, grid, layers_of_kinds

MOST = 128


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of the lowest layer in which few queries read, on random tokens of five kinds."""
    for place, layer in attentions(example).items():
        mechanism = layer.mechanism
        if not isinstance(mechanism, ProbSparse):
            continue
        size = min(length or CELLS, MOST)
        (call,) = calls(layer, clustered(size, layer.d))
        request, _ = mechanism.request(call.queries, call.keys, None, call.ctx)
        chosen = mechanism.chosen(request)[0, 0]
        reads = torch.zeros(size, 1, dtype=torch.bool).index_fill(0, chosen, True)
        at = torch.arange(size)[None, None]
        may = pairs(call.pattern, at, at, range(1))[0, 0]
        where = joined([place])
        panel = grid("", layers_of_kinds([may & reads, may & ~reads]), -(-size // CELLS))
        rest = f"{'sum' if mechanism.rest == 'sum' else 'mean'} of these values"
        note = f"{len(chosen)} of {size} queries are chosen; tokens of five kinds, weights as they start"
        yield Picture(
            f"queries that read{', ' + where if where else ''}, head 0",
            ("read by its scores", rest),
            (panel,),
            note=note,
        )
        return
