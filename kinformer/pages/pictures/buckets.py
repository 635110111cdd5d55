"""Pictures of keys grouped by content: the buckets of LSH and the clusters of routing attention.

Weights are measured: every key gets its own one-hot value, so the output of a query holds its attention weights.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.lab.cost.by_content import has_tags
from kinformer.pages.pictures.support.attention_calls import (
    MechanismCall,
    attentions,
    calls,
    clustered_tokens,
    first_head,
    join_names,
)
from kinformer.pages.pictures.support.drawer import suffix
from kinformer.pages.pictures.support.picture_panels import CELLS, Panel, Picture, grid, of_cells, span

TINY, ROUNDS = 1e-6, 2


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield pictures of attention that groups keys by content, with the keys that each query reads.

    A picture shows the first head of each class of mechanism that assigns keys to buckets or clusters.

    example: a mechanism, or a module with attention layers inside.
    length: number of positions to draw; None for 24.
    """
    groups: dict[str, tuple[list[str], Any]] = {}
    for place, layer in attentions(example).items():
        for mechanism in layer.mechanism.modules():
            if has_tags(mechanism):
                groups.setdefault(f"{type(mechanism).__name__}", ([], layer))[0].append(place)
    size, step = span(0, length, CELLS)
    for places, layer in groups.values():
        for call in calls(layer, clustered_tokens(size, layer.d)):
            if has_tags(call.mechanism):
                yield from _sorted_and_not(join_names(places), call, step)


def _sorted_and_not(where: str, call: MechanismCall, step: int) -> Iterator[Picture]:
    """Yield pictures of the keys that each query reads, by position and sorted by bucket or cluster."""
    read = first_head(call) > TINY
    name = type(call.mechanism).__name__
    for tag, numbers in tags_of(call).items():  # first head, [T, rounds]
        several = numbers.shape[1] > 1
        first = grid("by position", torch.where(read, numbers[:, 0] + 1, 0), step)
        panels = [first]
        for turn in range(min(ROUNDS, numbers.shape[1])):
            title = f"sorted by {tag}" + (f" in round {turn + 1}" if several else "")
            panels.append(_sorted_panel(title, read, numbers[:, turn], step))
        caption = f"{name}{suffix(where)}, head 0: which keys each query reads; tokens of five kinds"
        kinds = tuple(f"{tag} {n}" for n in range(int(numbers.max()) + 1))
        note = f"{len(read)} positions{of_cells(step, ', ')}; " if step > 1 else ""
        note += f"each cell shows the {tag} of its key"
        note += " in round 1, or in the round of the sorting" if several else ""
        note += f"; pale if the query has another {tag}" if several else ""
        yield Picture(caption, kinds, tuple(panels), note=note)


def _sorted_panel(title: str, read: Bool[Tensor, "T T"], number: Int[Tensor, " T"], step: int) -> Panel:
    """Return a panel sorted by a number; a pair is pale if its query and key do not share this number."""
    order = number.argsort(stable=True)
    read, number = read[order][:, order], number[order]
    panel = grid(title, torch.where(read, number + 1, 0), step)
    own_level = grid(title, (read & (number[:, None] == number)).long(), step).level
    names = tuple(str(n) for n in order[::step].tolist())
    return panel._replace(level=own_level + (panel.level - own_level) / 3, rows=names, columns=names)


def tags_of(call: MechanismCall) -> dict[str, Int[Tensor, "T r"]]:
    """Return the bucket or cluster of each key for the first head, with one column per hashing round.

    The dict has one entry, such as "bucket", for each way to group keys. Groups that the mechanism does not compute for
    queries are left out.

    call: the call of the mechanism.
    """
    queries, keys = call.mechanism.preprocess(call.queries, call.keys, call.ctx)
    assert keys is not None
    shared = call.queries.q.shape[1] // keys.k.shape[1]
    tags = call.mechanism.tags(keys).items()
    return {name: of[0, 0, :, : of.shape[3] // shared] for name, of in tags if name in queries.tags}
