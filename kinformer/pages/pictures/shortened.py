"""Keys that are made of several tokens: where they stand, who reads them, and what they are made of."""

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

NOTE = "read: a column is a key, under the position at which it stands"
PARTS = "; made of: a line is a token, a column a key"


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """Layers whose queries read fewer keys than there are tokens, and no memory; those that read alike in one."""
    alike: dict[str, tuple[list[str], list[Panel]]] = {}
    pos = torch.arange(length or CELLS)[None]
    for place, layer in attentions(example).items():
        if layer.cross or layer.memory is not None:
            continue
        # without a promise that no row is padded, so that it reads by the positions
        for call in calls(layer, torch.randn(1, pos.shape[1], layer.d), Context(pos, run=True)):
            if call.is_self_attention or not call.keys.own:
                continue
            panels = [_read(call)]
            if isinstance(layer.mechanism, Shortened):
                panels.append(_made_of(layer, layer.mechanism, pos))
            places = alike.setdefault(f"{call.pattern} {panels[0].columns}", ([], panels))[0]
            places.append(place.partition(",")[0])  # of several in a layer the layer
    for places, panels in alike.values():
        where = join_names(places)
        has_parts = len(panels) > 1
        caption = (
            f"{where + ': ' if where else ''}who reads which of the shortened keys{', and their tokens' * has_parts}"
        )
        yield Picture(caption, (), tuple(panels), note=NOTE + PARTS * has_parts)


def _read(call: MechanismCall) -> Panel:
    """Queries and the keys that they read, the first ones of many."""
    k_pos = call.keys.pos[..., : 2 * CELLS]
    read = pair_mask(call.pattern, call.queries.pos, k_pos, call.heads)[0, 0]
    return grid("read", read.long())._replace(columns=tuple(map(str, k_pos[0, 0].tolist())))


def _made_of(layer: Attention, mechanism: Shortened, pos: Tensor) -> Panel:
    return shades("made of", shares(layer, mechanism, pos)[: 2 * CELLS].T)


def shares(layer: Attention, mechanism: Shortened, pos: Tensor) -> Float[Tensor, "R S"]:
    """How much of each token there is in each key of the first head, of the most there is."""
    sizes, tokens = layer.sizes, pos.shape[1]
    k = torch.zeros(tokens + 1, sizes.key_heads, tokens, sizes.k_dim)  # a row for each token, in which it is 1
    k[:-1] = torch.eye(tokens)[:, None, :, None]
    v = torch.zeros(tokens + 1, sizes.value_heads, tokens, sizes.v_dim)
    keys = mechanism.shorten(Keys(k, v, pos[:, None].expand(tokens + 1, -1, -1))).k[:, 0]  # [tokens + 1, R, K]
    share = (keys[:-1] - keys[-1]).norm(dim=-1).T
    return share / share.amax().clamp_min(torch.finfo(share.dtype).tiny)
