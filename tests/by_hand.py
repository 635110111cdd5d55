"""Attention by hand: a softmax layer written out pair by pair, for the set of keys that a paper gives each query."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.nn.attention import Attention

May = Callable[[int, int, int], bool]  # may query i of head h read key j?


def attention_by_hand(layer: Attention, x: Float[Tensor, "T D"], may: May) -> Float[Tensor, "T D"]:
    """What the layer makes of one row: for each head and query the softmax over the keys that it may read."""
    heads, width = layer.sizes.heads, layer.sizes.k_dim
    q, k, v = (F.linear(x, *layer.projection.matrix(name)).view(len(x), heads, -1) for name in "qkv")
    y = torch.zeros_like(v)
    for h in range(heads):
        for i in range(len(x)):
            keys = [j for j in range(len(x)) if may(h, i, j)]
            weight = torch.softmax(torch.stack([q[i, h] @ k[j, h] for j in keys]) / width**0.5, 0)
            y[i, h] = sum(w * v[j, h] for w, j in zip(weight, keys, strict=True))
    return layer.aggregation(y.transpose(0, 1)[None], torch.arange(len(x))[None])[0]


def first_read(model: nn.Module, tokens: Int[Tensor, "1 T"]) -> tuple[Attention, Tensor, Tensor]:
    """The lowest attention of a model, what it is given of one row of tokens, and what it makes of that."""
    layer = next(part for part in model.modules() if isinstance(part, Attention))
    reads: list[Tensor] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
        reads.extend((inputs[0][0], out.y[0]))

    handle = layer.register_forward_hook(note)
    built: Any = model
    built.eval().logits(tokens)
    handle.remove()
    return layer, reads[0], reads[1]
