"""Sparse Transformer: each set of keys is about the p-th root of what was before, and p of them reach all of it."""

import math
from typing import Any, Literal

from torch import nn

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.position import Position
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.sparse_transformer_factors import (
    Sets,
    Use,
    Window,
    factor_patterns,
    init_weights,
    layer_patterns,
)
from kinformer.members.support.wiring import Wiring
from kinformer.models.image import ImageModel, check_shape
from kinformer.models.lm import LM
from kinformer.models.support.categorical_intensities import CategoricalIntensities
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.positions.coordinates import Coordinates


@member(
    recipe=Recipe(lr=3e-3, warmup=0.05),
    needs={
        "attention, use": "factors>1",
        "stride": "factors>1 or form=text",
        "summary, sub_blocks": "factors>1 and attention=fixed",
        "window": "factors>1 and attention=strided",
        "shape": "form=images",
        "length, vocab": "form=text",
    },
)
def sparse_transformer(
    form: Literal["text", "images"] = "text",
    attention: Sets = "fixed",
    use: Use = "merged",
    stride: int = 128,
    summary: int = 32,
    sub_blocks: int = 1,
    factors: int = 2,
    window: Window = "paper",
    gain: float = 0.125,
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    v_dim: int | None = None,
    hidden: int | None = None,
    shape: tuple[int, ...] = (1, 28, 28),
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM | ImageModel:
    """The Sparse Transformer (Child et al., 2019, arXiv:1904.10509), for text or, with form=images, for pictures.

    `attention` "strided" has sets A1 = {i - l .. i} and A2 = {j : (i - j) mod l = 0}, l being the `stride`: for what
    has that period, as pictures. "fixed" has A1 = the own block of l and A2 = the last c positions of every block, c
    being the `summary`: for text. With `sub_blocks` heads take c positions of their own, further from the block's end.
    Higher `factors` p go on: set m leaps by powers of l, and every earlier position is reached in p steps. `window`
    "code" is the authors' l keys in place of l + 1. A step of training (width 256, batch 1, on a CPU) is faster than
    `gpt`'s from about 2,000 tokens on, at 16,384 2.1 times as fast (bench/README.md).

    `use` "interleaved" gives layer n the set n mod p, "merged" all of them to every head, "heads" to head h the set
    h mod p. A picture goes row by row, channel by channel, with a table for rows, one for columns and one for channels;
    text has rows of `stride` tokens in place of that, up to `length`.

    `head_dim` is the width of a query and of a key, d / heads unless given, and `v_dim` that of a value, `head_dim`
    unless given: keys of half the width save time where a row is long. `hidden` is that of the feed-forward, 4 d.

    Blocks are pre-norm with x * sigmoid(1.702 x). Weights start at `gain` / sqrt(fan-in), the last of each sublayer
    sqrt(2 depth) times smaller, the head at 0. For long rows train with --checkpointing, and with --precision bf16.
    """
    check_option("attention", attention, Sets)
    wiring = Wiring(d, heads, head_dim, v_dim=v_dim, dropout=dropout)
    reads = layer_patterns(factor_patterns(attention, stride, summary, sub_blocks, factors, window), use, depth)
    body = wiring.stack(
        wiring.block(wiring.attention(pattern), MLP(d, hidden, activation="gelu_sigmoid")) for pattern in reads
    )
    init_weights(body, gain, depth)
    added: dict[str, Any] = {"dropout": dropout}
    if check_option("form", form, ("text", "images")) == "images":
        channels, rows, columns = check_shape(shape)
        position = make_coordinates(d, rows, columns, channels, gain)
        return ImageModel(
            shape, CategoricalIntensities(d, std=gain / math.sqrt(d), zero=True), body, position=position, **added
        )
    position = make_coordinates(d, -(-check_at_least("length", length, 1) // stride), stride, 1, gain)
    model = LM(vocab, d, body, position=position, tie=False, std=gain / math.sqrt(d), **added)
    nn.init.zeros_(model.head.weight)
    return model


def make_coordinates(d: int, rows: int, columns: int, channels: int, gain: float) -> Position:
    """A table for each coordinate; together they start as large as the embedding."""
    return Coordinates(d, rows, columns, channels, std=gain / math.sqrt(d * (2 if channels == 1 else 3)))


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "stride": 4}
TEXT: dict[str, Any] = {**TINY, "length": 64, "vocab": 11}
EXAMPLES = (
    lambda: sparse_transformer(**TEXT, summary=1),
    lambda: sparse_transformer(**TEXT, attention="strided", use="interleaved", window="code"),
    lambda: sparse_transformer(**TINY, form="images", attention="strided", use="heads", shape=(3, 4, 2)),
    lambda: sparse_transformer(d=16, depth=1, heads=2, stride=4, length=64, vocab=11, summary=1, v_dim=6, hidden=24),
)
