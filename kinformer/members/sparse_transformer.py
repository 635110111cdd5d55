"""Sparse Transformer: attention factorised into p sparse sets of keys."""

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
    cost="L * stride + L**2 * summary / stride",
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
    """Sparse Transformer (Child et al., 2019, arXiv:1904.10509), for text or for pictures.

    Each set of keys has about the p-th root of the earlier positions, and p steps reach all of them. The sets of
    "strided" attention are A1 = {i - l .. i} and A2 = {j : (i - j) mod l = 0}, with l the `stride`. For "fixed"
    attention, A1 is the token's block of l positions, and A2 is the last c positions of every block, with c the
    `summary`. With more factors, set m jumps by powers of l. A training step (width 256, batch 1, on a CPU) is faster
    than `gpt`'s from about 2,000 tokens on, and 2.1 times as fast at 16,384 (bench/README.md).

    form: "text" or "images".
    attention: "fixed" for text, or "strided" for data with the period l, such as pictures.
    use: assignment of the sets. "interleaved" gives layer n the set n mod p. "merged" gives all sets to every head.
        "heads" gives head h the set h mod p.
    stride: l, the period or the block size.
    summary: c, the number of last positions of each block ("fixed").
    sub_blocks: number of choices of c positions, each further from the block's end, that heads take in turn ("fixed").
    factors: p, the number of sets.
    window: number of keys in A1 of "strided" attention: l + 1 in the "paper", l in the authors' "code".
    gain: initial weights are `gain` / sqrt(fan-in).
    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a query and of a key; d / heads if None. Half the width saves time for long rows.
    v_dim: width of a value; `head_dim` if None.
    hidden: width of the feed-forward layer; 4 d if None.
    shape: channels, rows and columns of a picture.
    length: longest row in tokens; positions are tables of rows of `stride` tokens and of columns.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs.

    Pictures are generated row by row and channel by channel, with position tables for rows, columns and channels.
    Blocks are pre-norm with the activation x * sigmoid(1.702 x). The last map of each sublayer starts sqrt(2 depth)
    times smaller, and the head starts at 0. For long rows train with --checkpointing and --precision bf16.
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
    """Make a table of learned positions for each coordinate of a picture or text.

    The sum of their vectors starts as large as the embedding.

    d: model width.
    rows, columns, channels: sizes of the tables.
    gain: initial scale, as in `sparse_transformer`.
    """
    return Coordinates(d, rows, columns, channels, std=gain / math.sqrt(d * (2 if channels == 1 else 3)))


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "stride": 4}
TEXT: dict[str, Any] = {**TINY, "length": 64, "vocab": 11}
EXAMPLES = (
    lambda: sparse_transformer(**TEXT, summary=1),
    lambda: sparse_transformer(**TEXT, attention="strided", use="interleaved", window="code"),
    lambda: sparse_transformer(**TINY, form="images", attention="strided", use="heads", shape=(3, 4, 2)),
    lambda: sparse_transformer(d=16, depth=1, heads=2, stride=4, length=64, vocab=11, summary=1, v_dim=6, hidden=24),
)
