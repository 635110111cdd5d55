"""Pictures of attention with a fixed structure: stars, sets, reused weights, guided and merged heads."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.blocks.isab import ISAB
from kinformer.nn.depth.star import StarRounds
from kinformer.nn.losses.guided_attention import GuidedAttention
from kinformer.nn.mechanisms.delayed import Delayed
from kinformer.nn.mechanisms.lending import Lending
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.reused import Reused
from kinformer.nn.patterns.band import Band
from kinformer.nn.poolers.pma import PMA
from kinformer.pages.pictures.support.attention_calls import attentions, mask_of
from kinformer.pages.pictures.support.drawer import in_turn, of_parts
from kinformer.pages.pictures.support.picture_panels import CELLS, NARROW, Picture, grid, masks_grid, of_cells, span
from kinformer.pages.pictures.support.short_repr import largest_number, short_repr

MARK = 5  # if a guide is a label, every fifth token has it in the drawing


@of_parts(StarRounds)
def star(layer: StarRounds, where: str, length: int | None) -> Picture:
    """Draw one round of the Star-Transformer: attention of a relay and of the tokens on a ring around it."""
    size, step = span(3, length, NARROW)
    ring = layer.make_ring(Context.of_sequence(torch.zeros(1, size, 1)))
    relay, ringed = torch.zeros(2, size + 1, size + 1, dtype=torch.bool)
    relay[0] = relay[:, 0] = True
    at = torch.arange(size)
    for other in (at, ring.before[0], ring.after[0]):
        ringed[1 + at[other >= 0], 1 + other[other >= 0]] = True
    kinds = ("the relay reads tokens, tokens read the relay", "ring neighbours, the token itself and its embedding")
    return _masks("one round of a star", kinds, [relay, ringed], f"the relay, then {size} tokens", step)


@of_parts(ISAB, first=True)
def inducing_points(layer: ISAB, where: str, length: int | None) -> Picture:
    """Draw the attention of an ISAB: inducing points read a set's elements, then elements read the points."""
    size, step = _elements(layer.points, length)
    points, elements = torch.zeros(2, layer.points + size, layer.points + size, dtype=torch.bool)
    points[: layer.points, layer.points :], elements[layer.points :, : layer.points] = True, True
    kinds = ("inducing points read the elements", "elements read the results of the points")
    return _masks("one ISAB", kinds, [points, elements], f"{layer.points} inducing points, then {size} elements", step)


@of_parts(PMA, first=True)
def seeds(pooling: PMA, where: str, length: int | None) -> Picture:
    """Draw the attention of PMA (pooling of a set): seed vectors read the elements."""
    size, step = _elements(pooling.vectors, length)
    read, note = torch.ones(pooling.vectors, size, dtype=torch.bool), f"seeds and {size} elements"
    return _masks("pooling by multihead attention (PMA)", ("seeds read the elements",), [read], note, step)


def lent_weights(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield a picture that shows for each layer the layer that computes its attention weights.

    example: a module in which some layers reuse the attention weights of a lower layer.
    length: not used.
    """
    layers = list(attentions(example).values()) if isinstance(example, nn.Module) else []
    if not any(isinstance(layer.mechanism, Reused) for layer in layers):
        return
    kind, lender = torch.zeros(len(layers), len(layers), dtype=torch.long), 0
    for n, layer in enumerate(layers):
        reused = isinstance(layer.mechanism, Reused)
        kind[n, lender if reused else n] = 1 + reused
        lender = n if isinstance(layer.mechanism, Lending) else lender
    kinds = ("computed in this layer", "reused from a lower layer, with new values")
    yield Picture("source of the attention weights of each layer", kinds, (grid("", kind),), "layer", "layer")


def guided_heads(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield a picture of the keys that guided attention heads learn to read, by an extra training loss.

    example: a module with guided heads.
    length: number of positions; None for 16. If a head is guided to tokens with a label, the drawing gives every fifth
        token that label.
    """
    modules = example.modules() if isinstance(example, nn.Module) else ()
    losses = [module for module in modules if isinstance(module, GuidedAttention)]
    size, panels = length or NARROW, []
    for guide in dict.fromkeys(guide for loss in losses for guide in loss.guides if guide is not None):
        heads = [(n, h) for n, loss in enumerate(losses) for h, other in enumerate(loss.guides) if other == guide]
        places = ", ".join(f"layer {n} head {h}" for n, h in heads)
        if isinstance(guide, Pattern):
            name, marked = short_repr(guide), mask_of(guide, size)[0]
        else:
            name, marked = f"label {guide}", (torch.arange(size) % MARK == guide % MARK).expand(size, size)
        panels.append(grid(f"{places}: {name}", marked.long()))
    if panels:
        free = sum(guide is None for loss in losses for guide in loss.guides)
        note = f"{free} heads of the guided layers have no guide; the weight of this loss falls during training"
        yield Picture("keys that the loss guides each head to read", (), tuple(panels), note=note)


def merged_reads(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield pictures of `Merged` attention (one softmax over several sets of keys): the sets of keys.

    Each set is read by its own mechanism. Equal pictures are drawn once.

    example: a module that may hold `Merged` mechanisms.
    length: number of positions; None chooses a length that shows all parts.
    """
    drawings = set()
    for part in example.modules() if isinstance(example, nn.Module) else ():
        sets = tuple(map(_merged_set, part.parts)) if isinstance(part, Merged) else ()
        named_sets = tuple(x for x in sets if x is not None)
        if not named_sets or len(named_sets) < len(sets) or named_sets in drawings:
            continue
        drawings.add(named_sets)
        size, step = span(max(largest_number(pattern) for _, pattern in named_sets), length, CELLS)
        panel = masks_grid([pattern.matrix(size) for _, pattern in named_sets], step)
        note = f"{size} positions{of_cells(step)}" if step > 1 else ""
        yield Picture(
            "near keys and far keys in one softmax", tuple(name for name, _ in named_sets), (panel,), note=note
        )


def _merged_set(part: nn.Module) -> tuple[str, Pattern] | None:
    if isinstance(part, Delayed):
        return f"estimated, at least {part.by} tokens back", Causal() & ~Band(part.by - 1)
    return (f"exact: {short_repr(part.pattern)}", part.pattern) if isinstance(part, KeyValueMechanism) else None


def _elements(few: int, length: int | None) -> tuple[int, int]:
    """Return the number of elements to draw next to a few points, and the side length of a cell."""
    size, step = span(few, None if length is None else length + few, CELLS)
    return size - few, step


def _masks(caption: str, kinds: tuple[str, ...], masks: Sequence[Tensor], note: str, step: int) -> Picture:
    return Picture(caption, kinds, (masks_grid(masks, step),), note=note + of_cells(step))


pictures = in_turn(guided_heads, inducing_points, seeds, lent_weights, merged_reads, star)
