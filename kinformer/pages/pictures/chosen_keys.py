"""Pictures of attention that chooses by content: top-k keys, ProbSparse's queries, and retrieved keys."""

from typing import Any

import torch

from kinformer.lab.cost.by_content import best_of
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.mechanisms.topk import TopK
from kinformer.pages.pictures.support.attention_calls import call_of, first_head, mask_of
from kinformer.pages.pictures.support.drawer import in_turn, of_mechanisms
from kinformer.pages.pictures.support.picture_panels import CELLS, Picture, masks_grid, of_cells, span

TINY, RUN = 1e-9, 128  # smaller weights count as 0; most positions for which a layer is run


@of_mechanisms(Explicit, TopK, first=True)
def best_keys(mechanism: Any, layer: Attention, where: str, length: int | None) -> Picture | None:
    """Draw, for top-k attention, the k keys with the highest scores for each query and the keys left out."""
    if (k := best_of(mechanism)) is None:
        return None
    size = min(length or CELLS, RUN)
    call = call_of(layer, size)
    allowed, read = mask_of(call.pattern, size)[0], first_head(call) > TINY
    panel = masks_grid([read, allowed & ~read], -(-size // CELLS))
    caption, kinds = f"highest-scoring keys of each query{where}, head 0", ("read", "scored but not read")
    return Picture(caption, kinds, (panel,), note=f"the {k} best keys; tokens of five kinds, untrained weights")


@of_mechanisms(ProbSparse, first=True)
def reading_queries(mechanism: ProbSparse, layer: Attention, where: str, length: int | None) -> Picture:
    """Draw the queries that ProbSparse attention selects; other queries get a mean or sum of the values."""
    size = min(length or CELLS, RUN)
    call = call_of(layer, size)
    chosen = mechanism.choose_queries(mechanism.make_request(call.queries, call.keys, None, call.ctx)[0])[0, 0]
    reads = torch.zeros(size, 1, dtype=torch.bool).index_fill(0, chosen, True)
    allowed = mask_of(call.pattern, size)[0]
    panel = masks_grid([allowed & reads, allowed & ~reads], -(-size // CELLS))
    kinds = ("selected query: softmax", f"other query: {'sum' if mechanism.rest == 'sum' else 'mean'} of these values")
    note = f"{len(chosen)} of {size} queries are selected; tokens of five kinds, untrained weights"
    return Picture(f"selected queries{where}, head 0", kinds, (panel,), note=note)


@of_mechanisms(Retrieval)
def retrieved_keys(mechanism: Retrieval, layer: Attention, where: str, length: int | None) -> Picture:
    """Draw attention with retrieval: the near keys, all read, and the far keys that a search finds."""
    size, step = span((mechanism.length + mechanism.cache + mechanism.memory) * 2 // 3, length, CELLS)
    near, allowed = (mask_of(pattern, size)[0] for pattern in (mechanism.near, mechanism.pattern))
    retrieved, rest = torch.zeros_like(near), "far keys, searched"
    if size <= RUN:
        retrieved, rest = first_head(call_of(layer, size)) > TINY, "far keys, not retrieved"
    panel = masks_grid([near, retrieved & ~near, allowed & ~near], step)
    note = f"top {mechanism.k} far keys; {f'{size} positions{of_cells(step)}' if step > 1 else 'tokens of five kinds'}"
    kinds = ("near keys, all read", "far keys, retrieved", rest)
    return Picture(f"Retrieval{where}, head 0: near keys and the best far keys", kinds, (panel,), note=note)


pictures = in_turn(best_keys, reading_queries, retrieved_keys)
