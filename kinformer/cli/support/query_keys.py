"""Lines about one query: its keys, and the positions that reach it through several layers."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from kinformer.core.pattern import Pattern
from kinformer.lab.cost.by_content import by_content
from kinformer.lab.errors import UserError
from kinformer.pages.pictures.support.attention_calls import attentions, calls, mask_of
from kinformer.pages.pictures.support.short_repr import short_repr

MOST_LAYERS = 64  # layers of an expression after which the search ends
TOKENS = 8
MOST_RUNS = 16  # runs of positions that are listed


def query_lines(example: Any, query: int, length: int | None) -> Iterator[str]:
    """Yield lines with the keys of a query, and the positions that reach it by the number of layers.

    example: an attention pattern, or a module with attention layers whose keys do not depend on content.
    query: position of the query.
    length: number of positions; None for the positions up to the query, or for twice as many if later keys are read.

    Errors: UserError for a query outside the row, and for an example whose keys depend on the content of tokens.
    """
    if isinstance(example, Pattern):
        size = _length(query, length, example.reach()[1] > 0)
        mask = mask_of(example, size, range(4)).any(0)
        yield f"query {query} of {size} positions: {short_repr(example)}"
        yield from _reached([mask] * MOST_LAYERS, query)
        return
    layers = _masks(example, query, length)
    size = len(layers[0])
    yield f"query {query} of {size} positions, {len(layers)} layers; in layer {len(layers) - 1}, the last:"
    yield from _reached(layers[::-1], query)


def position_ranges(positions: Sequence[int]) -> str:
    """Return positions as text with runs joined, such as "0, 4, 8-12" or "0 to 40 by 8".

    positions: the positions in ascending order.
    """
    texts: list[str] = []
    rest = list(positions)
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        count = next((n for n in range(1, len(rest)) if rest[n] - rest[n - 1] != step), len(rest))
        first, last = rest[0], rest[count - 1]
        if step == 1 and count > 1:
            texts.append(f"{first}-{last}")
        elif count > 3:
            texts.append(f"{first} to {last} by {step}")
        else:
            texts.append(str(first))
            count = 1
        rest = rest[count:]
    more = f", ... ({len(texts) - MOST_RUNS} more runs)" if len(texts) > MOST_RUNS else ""
    return (", ".join(texts[:MOST_RUNS]) or "none") + more


def _length(query: int, length: int | None, is_ahead: bool) -> int:
    size = length if length is not None else (2 * (query + 1) if is_ahead else query + 1)
    if query >= size:
        raise UserError(
            f"--query {query} lies outside a row of {size} positions, 0 to {size - 1}. Give a larger --length"
        )
    return size


def _masks(example: Any, query: int, length: int | None) -> list[Bool[Tensor, "T T"]]:
    """Return the union of the masks of all heads for each attention layer, from the bottom."""
    layers = attentions(example) if isinstance(example, nn.Module) else {}
    if not layers:
        raise UserError(
            "--query needs a pattern or a model with attention layers; try kinformer show longformer --query 9"
        )
    patterns: list[list[tuple[Pattern, range]]] = []
    for place, layer in layers.items():
        inside = [call for call in calls(layer, torch.randn(1, TOKENS, layer.d)) if call.is_self_attention]
        if layer.cross:
            continue
        for call in inside:
            if by_content(call.mechanism):
                name = type(call.mechanism).__name__
                raise UserError(
                    f"--query failed: {name} of {place or 'the layer'} chooses keys by the content of tokens, and "
                    "there is no text here. Use kinformer look RUN --text TEXT"
                )
        if not inside:
            raise UserError(
                f"--query failed: {type(layer.mechanism).__name__} has no keys that follow from positions. "
                "Use kinformer look RUN --text TEXT"
            )
        patterns.append([(call.pattern, call.heads) for call in inside])
    is_ahead = any(pattern.reach()[1] > 0 for inside in patterns for pattern, _ in inside)
    size = _length(query, length, is_ahead)
    return [torch.cat([mask_of(*pair[:1], size, pair[1]) for pair in inside]).any(0) for inside in patterns]


def _reached(masks: Sequence[Bool[Tensor, "T T"]], query: int) -> Iterator[str]:
    """Yield a line for each number of layers through which further positions reach the query."""
    size = len(masks[0])
    known = torch.zeros(size, dtype=torch.bool)
    known[query] = True
    before = torch.zeros(size, dtype=torch.bool)
    for count, mask in enumerate(masks, 1):
        now = mask[known].any(0) | (known if count > 1 else before)
        further = (now & ~before).nonzero()[:, 0].tolist()
        if count == 1:
            yield f"  reads {len(further)} keys: {position_ranges(further)}"
        elif further:
            words = "position reaches" if len(further) == 1 else "positions reach"
            yield f"  after {count} layers {len(further)} further {words} it: {position_ranges(further)}"
        if torch.equal(now | known, known | before) and count > 1:
            break
        before, known = now | before, now | known
    missing = (~known).nonzero()[:, 0].tolist()
    yield f"  never reach it: {position_ranges(missing)}" if missing else "  all positions reach it"
