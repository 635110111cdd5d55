"""Pictures of attention with global tokens: nodes in front of a text, or the last block of a row."""

from functools import partial

import torch
from torch import Tensor, nn

from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context
from kinformer.core.pattern import pair_mask
from kinformer.nn.depth.global_ends import GlobalEnds
from kinformer.nn.depth.global_nodes import GlobalNodes
from kinformer.pages.pictures.support.attention_calls import MechanismCall, attentions, calls, inputs_of, mask_of
from kinformer.pages.pictures.support.drawer import in_turn, of_parts
from kinformer.pages.pictures.support.picture_panels import (
    CELLS,
    NARROW,
    Panel,
    Picture,
    grid,
    masks_grid,
    of_cells,
    span,
)
from kinformer.pages.pictures.support.short_repr import largest_number

PIECES = ("global to global (g2g)", "global to long (g2l)", "long to global (l2g)", "long to long (l2l)")
ENDS, LAYERS = ("pattern of the layer", "global last block"), 4


@of_parts(GlobalEnds)
def global_ends(layer: GlobalEnds, where: str, length: int | None) -> Picture:
    """Draw which keys each query reads in rows whose last block is global: it reads all, and all read it.

    There is a panel for each of the first 4 inner layers with different patterns.
    """
    inside = attentions(layer.layer)
    patterns = [part.mechanism.pattern for part in inside.values() if isinstance(part.mechanism, KeyValueMechanism)]
    size, step = span(max(2 * max(map(largest_number, patterns)), 3 * layer.block), length, NARROW)
    panels: list[Panel] = []
    for place, part in inside.items():
        (call,) = calls_inside(layer, part, torch.randn(1, size, layer.d))
        whole, local = (mask_of(pattern, size)[0] for pattern in (call.pattern, call.mechanism.pattern))
        panel = masks_grid([local, whole & ~local], step)._replace(title=place)
        if len(panels) < LAYERS and not any(torch.equal(panel.level, other.level) for other in panels):
            panels.append(panel)
    note = f"{size} positions in blocks of {layer.block} positions{of_cells(step)}"
    return Picture("which keys each query reads if the last block is global", ENDS, tuple(panels), note=note)


@of_parts(GlobalNodes)
def global_nodes(layer: GlobalNodes, where: str, length: int | None) -> Picture:
    """Draw the four pieces of attention between global nodes and the tokens of a long text.

    The first inner layer is drawn.
    """
    short = max(largest_number(call.pattern) for call in node_calls(layer, 4)) // 2
    size, step = span(max(layer.n, short), length, 4 * CELLS // 3)
    inside = node_calls(layer, max(size - layer.n, 1))
    pos = inside[0].queries.pos[:1]
    # a layer may use several mechanisms for its pieces; a pair is read if any mechanism reads it
    read = torch.stack([pair_mask(call.pattern, pos, pos, call.heads)[0].any(0) for call in inside]).any(0)
    is_global = torch.arange(len(read)) < layer.n
    kind = torch.where(is_global[:, None], torch.where(is_global, 1, 2), torch.where(is_global, 3, 4))
    hard, text = getattr(layer, "hard", ()), len(read) - layer.n
    caption = "the four pieces of global-local attention" + (f", hard in {' and '.join(hard)}" if hard else "")
    note = f"{layer.n} global tokens, then {text} long tokens in {min(layer.n, text)} segments of equal length"
    return Picture(caption, PIECES, (grid("", torch.where(read, kind, 0), step),), note=note + of_cells(step))


def node_calls(layer: GlobalNodes, tokens: int) -> list[MechanismCall]:
    """Run a layer with global nodes on a random text; return the attention calls of its first inner layer.

    layer: the layer with global nodes.
    tokens: number of tokens of the text.
    """
    segment = (torch.arange(tokens) * layer.n // tokens)[None]
    inside = next(iter(attentions(layer).values()))
    return calls_inside(layer, inside, torch.randn(1, tokens, layer.d), segment=segment)


def calls_inside(layer: nn.Module, inside: nn.Module, x: Tensor, **labels: Tensor) -> list[MechanismCall]:
    """Run a layer on x, and return the mechanism calls of an attention layer inside it.

    layer: the outer layer.
    inside: the attention layer inside it.
    x: input [B, T, D] of the outer layer.
    labels: labels of the tokens by name, such as their segments.
    """
    ctx = Context.of_sequence(x).replace(labels=labels) if labels else Context.of_sequence(x)
    x, _, ctx = inputs_of(inside, partial(layer, x, None, ctx))
    return calls(inside, x, ctx)  # type: ignore[arg-type]


pictures = in_turn(global_ends, global_nodes)
