"""What a bias leaves of attention at each distance: the weights of queries that say nothing themselves."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.core.bias import Bias
from kinformer.core.keyed import KeyValueMechanism
from kinformer.core.patterns.causal import Causal
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from kinformer.pages.pictures.support.layers import attentions, calls, joined, weighed
from kinformer.pages.pictures.support.panel import NARROW, Picture, shades

HEADS, FLAT = 4, 0.8  # heads that are drawn; a bias whose least weight is more of its greatest shows nothing


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The bias of the first layer that has one, where it does something before it has learned."""
    if isinstance(example, Bias):
        layers = {"": Attention(QKV(16, 2), Softmax(Causal(), example))}
    else:
        layers = attentions(example) if isinstance(example, nn.Module) else {}
    for place, layer in layers.items():
        bias = layer.mechanism.bias if isinstance(layer.mechanism, KeyValueMechanism) else None
        if bias is None:
            continue
        size = length or NARROW
        (call, *_) = calls(layer, torch.randn(1, size, layer.d))
        try:
            weights = weighed(call, q=torch.zeros_like(call.queries.q))
        except (RuntimeError, ValueError):
            return  # it adds to values, which then are of their own width, or reads labels that nobody gives here
        levels = weights / weights.amax(-1, keepdim=True).clamp_min(1e-9)  # [H T S]
        if levels[:, -1].min() < FLAT and levels.shape[1] == levels.shape[2]:
            names = [str(n) for n in range(size)]
            panels = tuple(shades(f"head {n}", level, names, names) for n, level in enumerate(levels[:HEADS]))
            where = joined([place])
            caption = (
                f"{type(bias).__name__}{', ' + where if where else ''}: what it leaves of a weight at each distance"
            )
            yield Picture(caption, (), panels, note="of the greatest in each line, where content says nothing")
        return
