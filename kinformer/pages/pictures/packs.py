"""Rows that are packed into a few vectors: what each takes of each token, and what tokens hear through them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.mechanism import Mechanism
from kinformer.nn.depth.luna import LunaStack
from kinformer.nn.mechanisms.luna_causal import LunaCausal
from kinformer.pages.pictures.support.layers import attentions, clustered, joined
from kinformer.pages.pictures.support.panel import CELLS, Picture, shades

NOTE = "before any training, of tokens of five kinds; the strongest is full"


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """What packs take of tokens in the lowest block of a LunaStack, and tokens of earlier ones by LunaCausal."""
    size = length or CELLS
    tokens = [str(n) for n in range(size)]
    for one in example.modules() if isinstance(example, nn.Module) else ():
        if isinstance(one, LunaStack):
            packs = [str(n) for n in range(one.packs.count)]
            taken = _taken(one.blocks[0].nested.pack.mechanism, partial(one, clustered(size, one.d)))
            panel = shades("", taken, packs, tokens)
            caption = "layer 0, head 0: what a pack takes of each token; tokens read the packs alone"
            yield Picture(caption, (), (panel,), line="pack", column="token", note=NOTE)
    for place, layer in attentions(example).items():
        if isinstance(layer.mechanism, LunaCausal):
            where = joined([place])
            taken = _taken(layer.mechanism, partial(layer, clustered(size, layer.d)))
            caption = f"LunaCausal{', ' + where if where else ''}, head 0: what a token takes of each through the packs"
            yield Picture(caption, (), (shades("", taken, tokens, tokens),), note=NOTE)


@torch.no_grad()
def _taken(mechanism: Mechanism, run: Callable[[], Any]) -> Float[Tensor, "T S"]:
    """How much head 0 takes of each key, over the most: every value is a vector of its own, so the answer tells."""
    given: list[Any] = []
    with mechanism.register_forward_pre_hook(lambda module, inputs: given.append(inputs)):
        run()
    queries, keys, _, ctx = given[0]
    eye = torch.eye(keys.pos.shape[-1]).expand(1, keys.v.shape[1], -1, -1)
    weights = mechanism(queries, keys._replace(v=eye), None, ctx).y.y[0, 0].abs()
    return weights / weights.amax().clamp_min(1e-9)
