"""A decoder like gpt whose tokens leave early: what calm and depth_adaptive share."""

from typing import Any

from torch import nn

from kinformer.depth.early_exit import EarlyExit
from kinformer.exits.rules import Rule
from kinformer.feedforward.mlp import MLP
from kinformer.members.support.wiring import START, Wiring
from kinformer.models.multi_exit import MultiExit
from kinformer.norms.layer import LayerNorm


def early_exit(made: Wiring, depth: int, pattern: str, vocab: int, rule: Rule, **others: Any) -> MultiExit:
    """`depth` blocks under a pattern, of which each token takes as many as its rule says; others: of MultiExit."""
    layers = [
        made.block(made.attention(pattern, dropout=made.dropout), MLP(made.d, activation="gelu_tanh"))
        for _ in range(depth)
    ]
    body = EarlyExit(layers, LayerNorm(made.d) if made.norm == "pre" else nn.Identity(), rule)
    return MultiExit(
        vocab, made.d, body, position=made.added(), scale=made.scale, std=START, dropout=made.dropout, **others
    )
