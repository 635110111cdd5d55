"""Pictures of attention weights of untrained parts, measured on random tokens."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from kinformer.core.bias import Bias
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context, Layer
from kinformer.core.patterns.causal import Causal
from kinformer.core.score import Score
from kinformer.nn.attention import Attention
from kinformer.nn.depth.luna import LunaStack
from kinformer.nn.mechanisms.landmarks import ThroughLandmarks
from kinformer.nn.mechanisms.luna_causal import LunaCausal
from kinformer.nn.mechanisms.sac import SAC
from kinformer.nn.mechanisms.sac_published import PublishedSAC
from kinformer.nn.mechanisms.sinkhorn import Sinkhorn
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mixers.average_attention import AverageAttention
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.scores.fixed_length import Synthesizer
from kinformer.nn.scores.mixture import Mixture
from kinformer.pages.pictures.support.attention_calls import (
    attentions,
    call_of,
    calls,
    clustered_tokens,
    first_head,
    inputs_of,
    one_hot_weights,
    read_weights,
)
from kinformer.pages.pictures.support.drawer import in_turn, of_mechanisms, of_parts, suffix
from kinformer.pages.pictures.support.picture_panels import (
    CELLS,
    NARROW,
    Panel,
    Picture,
    numbers,
    of_cells,
    of_most,
    shades,
)

HEADS, DIRECTIONS = 4, 8  # most heads that are drawn; random directions in which a mixer's output is differentiated
FLAT = 0.8  # a bias is not drawn if its smallest weight is at least this share of its largest
PACKED = "tokens of five kinds, untrained weights; relative to the largest"


@of_mechanisms(SAC, PublishedSAC)
def edges(mechanism: Any, layer: Attention, where: str, length: int | None) -> Picture:
    """Draw the pairs of query and key (edges) that the network of sparse adaptive connection chooses."""
    each = "for each" if isinstance(mechanism, SAC) else "per"
    caption = (
        f"{type(mechanism).__name__}{where}, head 0: {mechanism.edges} edges chosen {each} token, and the token itself"
    )
    panel = shades("", first_head(call_of(layer, length or CELLS)))
    return Picture(caption, (), (panel,), note="attention weights; tokens of five kinds, untrained weights")


@of_mechanisms(Sinkhorn)
def sorted_blocks(mechanism: Sinkhorn, layer: Attention, where: str, length: int | None) -> Picture:
    """Draw, for Sinkhorn attention, the soft permutation of key blocks and the weights over sorted tokens."""
    size = length or 6 * mechanism.block
    call, count = call_of(layer, size), -(-size // mechanism.block)
    order = mechanism.sorting(call.keys.extras["sort"], mechanism.blocks_of(call.keys.pos))[0, 0, :count, :count]
    panels, note = [shades("sorted", order)], "sorted: share of each block (column) at each sorted place (row)"
    if size <= CELLS:
        panels.append(shades("read", first_head(call)))
        note += "; read: weight of each token (column) for each query (row)"
    caption = f"Sinkhorn{where}, head 0: blocks of {mechanism.block} tokens, untrained weights"
    return Picture(caption, (), tuple(panels), "row", "column", note)


@of_mechanisms(ThroughLandmarks, first=True)
def landmarks(mechanism: ThroughLandmarks, layer: Attention, where: str, length: int | None) -> Picture:
    """Draw the tokens that each landmark (representative vector) averages, and the resulting weights."""
    size = length or max(CELLS, 3 * getattr(mechanism, "landmarks", 0))
    run = partial(layer, clustered_tokens(size, layer.d))
    *_, ctx = inputs_of(mechanism, run)
    means = mechanism.segments(ctx.by_head, ctx).means(torch.eye(size)[None, None])[0, 0]
    step = -(-size // CELLS)
    panels = (_pooled_panel("means", means, step), _pooled_panel("read", one_hot_weights(mechanism, run), step))
    caption = f"{type(mechanism).__name__}{where}, head 0, untrained weights"
    note = "means: tokens (columns) in each landmark (row); read: absolute weight of each token for each query (row)"
    return Picture(caption, (), panels, "row", "column", note + of_cells(step))


@of_parts(LunaStack)
def packs(stack: LunaStack, where: str, length: int | None) -> Picture:
    """Draw the attention weights over tokens of Luna's packs (vectors that summarise a row), lowest block."""
    run = partial(stack, clustered_tokens(length or CELLS, stack.d))
    level = one_hot_weights(stack.blocks[0].nested.pack.mechanism, run)
    caption = "layer 0, head 0: weight of each token in each pack; tokens read only the packs"
    return Picture(caption, (), (shades("", of_most(level)),), "pack", "token", PACKED)


@of_mechanisms(LunaCausal)
def through_packs(mechanism: LunaCausal, layer: Attention, where: str, length: int | None) -> Picture:
    """Draw the weights with which causal Luna reads earlier tokens through packs (summary vectors)."""
    level = one_hot_weights(mechanism, partial(layer, clustered_tokens(length or CELLS, layer.d)))
    caption = f"LunaCausal{where}, head 0: weight of each earlier token through the packs"
    return Picture(caption, (), (shades("", of_most(level)),), note=PACKED)


@of_parts(AverageAttention, first=True)
def mixer_sensitivity(mixer: AverageAttention, where: str, length: int | None) -> Picture:
    """Draw how much the output of a token mixer, such as average attention, depends on each input token."""
    level = of_most(sensitivity(mixer, torch.randn(1, length or CELLS, mixer.d)), -1)
    caption = f"{type(mixer).__name__}{where}: influence of each input token on each output token"
    note = "size of the gradient, relative to the largest in each row; random tokens, untrained weights"
    return Picture(caption, (), (shades("", level),), "output token", "input token", note)


def sensitivity(layer: Layer, x: Float[Tensor, "1 T D"]) -> Float[Tensor, "T T"]:
    """Return the size of the gradient of a layer's output at each token with respect to each input token.

    The output is projected on 8 random directions.

    layer: the layer.
    x: input [1, T, D].
    """
    directions, lines = torch.randn(DIRECTIONS, layer.d), []
    with torch.enable_grad():
        x = x.requires_grad_()
        for token in layer(x, None, Context.of_sequence(x)).y[0]:
            gradients = [torch.autograd.grad(token @ direction, x, retain_graph=True)[0][0] for direction in directions]
            lines.append(torch.stack(gradients).norm(dim=(0, 2)))
    return torch.stack(lines)


def synthesized(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield a picture of the attention weights of the lowest layer with a Synthesizer.

    A Synthesizer makes scores without comparing queries and keys, alone or inside a `Mixture` (sum of scores). Each
    head has a panel, up to 4.

    example: a score, or a module with attention layers inside.
    length: number of positions, at most the longest row of the score; None for 16.
    """
    layers = attentions(example)
    if isinstance(example, Score):
        layers = {"": Attention(QKV(16, 2), Softmax(Causal(), score=example))}
    for place, layer in layers.items():
        score = layer.mechanism.score if isinstance(layer.mechanism, KeyValueMechanism) else None
        if not isinstance(score, Synthesizer | Mixture):
            continue
        size = min([length or NARROW, *(part.length for part in score.modules() if isinstance(part, Synthesizer))])
        (call,) = calls(layer, torch.randn(1, size, layer.d))
        names = " and ".join(type(x).__name__ for x in (score.scores if isinstance(score, Mixture) else [score]))
        caption = f"{names}{suffix(place)}: attention weights, untrained"
        yield Picture(
            caption, (), _heads(read_weights(call)), note="relative to the largest in each row; random tokens"
        )
        return


def distance(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield a picture of how the first attention bias of an example changes the attention weights.

    The weights are measured with zero queries, so they show only the bias.

    A bias is not drawn if it has no visible effect before training. A bias that adds to values or reads labels of
    tokens is not drawn either, because it needs more inputs.

    example: a bias, or a module with attention layers inside.
    length: number of positions; None for 16.
    """
    if isinstance(example, Bias):
        layers = {"": Attention(QKV(16, 2), Softmax(Causal(), example))}
    else:
        layers = attentions(example) if isinstance(example, nn.Module) else {}
    for place, layer in layers.items():
        bias = layer.mechanism.bias if isinstance(layer.mechanism, KeyValueMechanism) else None
        if bias is None:
            continue
        (call, *_) = calls(layer, torch.randn(1, length or NARROW, layer.d))
        try:
            levels = of_most(read_weights(call, q=torch.zeros_like(call.queries.q)), -1)
        except (RuntimeError, ValueError):
            return
        if levels[:, -1].min() >= FLAT or levels.shape[1] != levels.shape[2]:
            return
        caption = f"{type(bias).__name__}{suffix(place)}: attention weights from the bias only"
        yield Picture(
            caption, (), _heads(levels), note="relative to the largest in each row; all scores without bias are 0"
        )
        return


def _heads(weights: Float[Tensor, "H T S"]) -> tuple[Panel, ...]:
    """Return panels of the first heads; the weights of each query are relative to its largest weight."""
    return tuple(shades(f"head {n}", level) for n, level in enumerate(of_most(weights.detach(), -1)[:HEADS]))


def _pooled_panel(title: str, level: Float[Tensor, "R C"], step: int) -> Panel:
    """Return a panel whose cells are means over squares of values, relative to the largest mean."""
    cells = avg_pool2d(level[None], step, ceil_mode=True, count_include_pad=False)[0]
    return shades(title, of_most(cells), *(numbers(size, step) for size in cells.shape))


pictures = in_turn(distance, edges, landmarks, mixer_sensitivity, packs, through_packs, sorted_blocks, synthesized)
