"""Scores without a product of queries and keys: how much each query takes of each key, before any training."""

from collections.abc import Iterator
from typing import Any

import torch

from kinformer.core.keyed import KeyValueMechanism
from kinformer.core.patterns.causal import Causal
from kinformer.core.score import Score
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.scores.fixed_length import Synthesizer
from kinformer.nn.scores.mixture import Mixture
from kinformer.pages.pictures.support.layers import attentions, calls, joined, weighed
from kinformer.pages.pictures.support.panel import NARROW, Picture, shades

HEADS = 4


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of the lowest layer whose scores a Synthesizer makes, alone or in a Mixture; a panel for each head."""
    layers = attentions(example)
    if isinstance(example, Score):
        layers = {"": Attention(QKV(16, 2), Softmax(Causal(), score=example))}
    for place, layer in layers.items():
        score = layer.mechanism.score if isinstance(layer.mechanism, KeyValueMechanism) else None
        if not isinstance(score, Synthesizer | Mixture):
            continue
        ends = [one.length for one in score.modules() if isinstance(one, Synthesizer)]
        size = min([length or NARROW, *ends])
        (call,) = calls(layer, torch.randn(1, size, layer.d))
        names = [str(n) for n in range(size)]
        levels = weighed(call)[:HEADS].detach()
        levels = levels / levels.amax(-1, keepdim=True).clamp_min(1e-9)
        where, made = joined([place]), score.scores if isinstance(score, Mixture) else [score]
        what = " and ".join(type(one).__name__ for one in made)
        panels = tuple(shades(f"head {n}", level, names, names) for n, level in enumerate(levels))
        caption = f"{what}{', ' + where if where else ''}: what a query takes of a key, before any training"
        yield Picture(caption, (), panels, note="of the greatest in each line; random tokens")
        return
