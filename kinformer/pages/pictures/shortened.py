"""Pictures of attention to shortened keys, which stand for several tokens each."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.heads import Keys
from kinformer.core.layer import Context
from kinformer.core.pattern import pair_mask
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.pages.pictures.support.attention_calls import MechanismCall, attentions, calls, join_names
from kinformer.pages.pictures.support.picture_panels import CELLS, Panel, Picture, grid, shades

NOTE = "read: each column is a key, named by its position"
PARTS = "; made of: each row is a token and each column is a key"


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield pictures of attention layers in which one key stands for several tokens.

    A picture shows the keys that each query reads, and the tokens that make up each key. Equal layers are drawn once.
    Layers with a memory of earlier segments are left out.

    example: a mechanism, or a module with attention layers inside.
    length: number of positions to draw; None for 24.
    """
    alike: dict[str, tuple[list[str], list[Panel]]] = {}
    pos = torch.arange(length or CELLS)[None]
    for place, layer in attentions(example).items():
        if layer.cross or layer.memory is not None:
            continue
        # this context may contain padding, so the mechanism must use the positions
        for call in calls(layer, torch.randn(1, pos.shape[1], layer.d), Context(pos, run=True)):
            if call.is_self_attention or not call.keys.own:
                continue
            panels = [_read(call)]
            if isinstance(layer.mechanism, Shortened):
                panels.append(_made_of(layer, layer.mechanism, pos))
            places = alike.setdefault(f"{call.pattern} {panels[0].columns}", ([], panels))[0]
            places.append(place.partition(",")[0])  # if a layer holds several, only the layer is named
    for places, panels in alike.values():
        where = join_names(places)
        has_parts = len(panels) > 1
        caption = (
            f"{where + ': ' if where else ''}shortened keys that each query reads{', and their tokens' * has_parts}"
        )
        yield Picture(caption, (), tuple(panels), note=NOTE + PARTS * has_parts)


def _read(call: MechanismCall) -> Panel:
    """Return a panel of the queries and the first 48 shortened keys that they read."""
    k_pos = call.keys.pos[..., : 2 * CELLS]
    read = pair_mask(call.pattern, call.queries.pos, k_pos, call.heads)[0, 0]
    return grid("read", read.long())._replace(columns=tuple(map(str, k_pos[0, 0].tolist())))


def _made_of(layer: Attention, mechanism: Shortened, pos: Tensor) -> Panel:
    return shades("made of", shares(layer, mechanism, pos)[: 2 * CELLS].T)


def shares(layer: Attention, mechanism: Shortened, pos: Tensor) -> Float[Tensor, "R S"]:
    """Return the contribution of each token to each shortened key of head 0, relative to the largest.

    layer: attention layer that holds the mechanism.
    mechanism: mechanism that shortens the keys.
    pos: positions [1, T] of the tokens.
    """
    sizes, tokens = layer.sizes, pos.shape[1]
    k = torch.zeros(tokens + 1, sizes.key_heads, tokens, sizes.k_dim)  # row n is 1 at token n; the last row is 0
    k[:-1] = torch.eye(tokens)[:, None, :, None]
    v = torch.zeros(tokens + 1, sizes.value_heads, tokens, sizes.v_dim)
    keys = mechanism.shorten(Keys(k, v, pos[:, None].expand(tokens + 1, -1, -1))).k[:, 0]  # [tokens + 1, R, K]
    share = (keys[:-1] - keys[-1]).norm(dim=-1).T
    return share / share.amax().clamp_min(torch.finfo(share.dtype).tiny)
