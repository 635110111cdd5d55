"""Lines about one query: its keys, and the positions that reach it through several layers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.mechanism import Mechanism
from kinformer.core.model import Model
from kinformer.core.pattern import Heads, Pattern, pair_mask
from kinformer.core.patterns.on_heads import OnHeads
from kinformer.lab.cost.by_content import by_content
from kinformer.lab.cost.called_layers import called_layers, has_other_state
from kinformer.lab.errors import UserError
from kinformer.nn.attention import Attention
from kinformer.pages.pictures.support.attention_calls import MechanismCall, attentions, calls
from kinformer.pages.pictures.support.short_repr import short_repr

Parts = list[tuple[Pattern, range]]  # patterns of a layer, and the heads that have each
TOKENS = 8
PAIRS = 1 << 22  # most pairs of query and key whose masks are computed at once
TEXTS = ("text", "masked", "labelled", "multitask")  # kinds of data whose positions are tokens
HEADS = 4  # least heads of an expression, some of which draw keys at random for each head
MOST_RUNS = 16  # runs of positions that are listed
MOST_LINES = 8  # numbers of layers that are listed
TO_LOOK = "Use kinformer look RUN --text TEXT"


def query_lines(example: Any, query: int, length: int | None) -> Iterator[str]:
    """Yield lines with the keys of a query, and the positions that reach it by the number of layers.

    example: an attention pattern, which every layer then has, or a module with attention layers whose keys do not
        depend on content.
    query: position of the query.
    length: number of positions; None for the positions up to the query, or for twice as many if later keys are read.

    Errors: UserError for a query outside the row, and for an example whose keys do not follow from positions.
    """
    if isinstance(example, Pattern):
        size = _length(query, length, example.reach()[1] > 0)
        parts = [(example, range(max(HEADS, _head_count(example))))]
        by_head = pair_mask(example, torch.tensor([[[query]]]), torch.arange(size)[None, None], parts[0][1])[0, :, 0]
        together = f", {len(parts[0][1])} heads together" if (by_head != by_head[:1]).any() else ""
        yield f"query {query} of {size:,} positions{together}: {short_repr(example)}"
        yield from _reached([parts] * size, query, size)
        return
    layers = _layer_patterns(example)
    size = _length(query, length, any(pattern.reach()[1] > 0 for parts in layers for pattern, _ in parts))
    place = f"; in the last of {len(layers)} layers" if len(layers) > 1 else ""
    yield f"query {query} of {size:,} positions{place}:"
    yield from _reached(layers[::-1], query, size)


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


def _head_count(pattern: Pattern) -> int:
    """Return the number of heads after which the patterns that an expression lists by head repeat."""
    if isinstance(pattern, OnHeads):
        return pattern.of
    inside = list(pattern.patterns) if isinstance(pattern, Heads) else []
    inside += [part for field in fields(pattern) if isinstance(part := getattr(pattern, field.name), Pattern)]
    if pattern.expression is not pattern:
        inside.append(pattern.expression)
    turns = len(pattern.patterns) if isinstance(pattern, Heads) else 1
    return math.lcm(turns, *map(_head_count, inside))


def _layer_patterns(example: Any) -> list[Parts]:
    """Return the patterns of each call of an attention layer with their heads, in the order of the calls."""
    layers = _called_layers(example)
    patterns = {
        layer: [(call.pattern, call.heads) for call in _position_calls(layer)] for layer in dict.fromkeys(layers)
    }
    return [patterns[layer] for layer in layers]


def _called_layers(example: Any) -> list[Attention]:
    """Return the attention layers in the order of their calls; a layer that is called twice appears twice."""
    layers = list(attentions(example).values()) if isinstance(example, nn.Module) else []
    if not layers:
        raise UserError(
            "--query needs a pattern or a model with attention layers; try kinformer show longformer --query 9"
        )
    if any(layer.cross for layer in layers):
        _refuse("its layers also read another sequence than their own. Name a pattern, such as 'Causal()'")
    if not isinstance(example, Model):
        if len(layers) > 1:
            _refuse("it has several attention layers, and only a model says their order. Name a member or a pattern")
        return layers
    if has_other_state(example):
        _refuse(f"a layer other than attention carries a state, which may hold any earlier token. {TO_LOOK}")
    called = called_layers(example, TOKENS + 1)
    sizes = {call.positions for call in called}
    if len(sizes) != 1 or (example.reads in TEXTS and not sizes <= {TOKENS, TOKENS + 1}):
        _refuse("its layers read other positions than the tokens of a row. Name a pattern, such as 'Causal()'")
    return [call.layer for call in called]


def _position_calls(layer: Attention) -> list[MechanismCall]:
    """Return the calls of a layer's mechanisms, or refuse a layer that reads more than keys at given positions."""
    inside = calls(layer, torch.randn(1, TOKENS, layer.d))
    for call in inside:
        if by_content(call.mechanism):
            _refuse(
                f"{type(call.mechanism).__name__} chooses keys by the content of tokens, and there is no text here. "
                f"{TO_LOOK}"
            )
    innermost = [
        part
        for part in layer.mechanism.modules()
        if isinstance(part, Mechanism)
        and not any(isinstance(below, Mechanism) and below is not part for below in part.modules())
    ]
    recorded = {call.mechanism for call in inside}
    for part in innermost:
        if part not in recorded or not isinstance(part, KeyValueMechanism):
            _refuse(f"not every key of {type(part).__name__} follows from positions. {TO_LOOK}")
    for call in inside:
        if not call.is_self_attention:
            _refuse(f"some keys of {type(layer.mechanism).__name__} are not single tokens of the row. {TO_LOOK}")
    return inside


def _refuse(reason: str) -> NoReturn:
    raise UserError(f"--query failed: {reason}")


def _reached(layers: Sequence[Parts], query: int, size: int) -> Iterator[str]:
    """Yield a line for each number of layers through which further positions reach the query.

    layers: the patterns of each layer, from the last to the first.
    query: position of the query.
    size: number of positions.
    """
    reached = torch.arange(size) == query
    keys = _keys_of(layers[0], reached)
    yield f"  reads {_count(int(keys.sum()), 'key')}: {_ranges(keys)}"
    further, reached = keys & ~reached, keys | reached
    lines = []
    for count, (below, parts) in enumerate(pairwise(layers), 2):
        # positions that reached it before read nothing new in a layer with the same patterns
        further = _keys_of(parts, further if parts is below else reached) & ~reached
        if further.any():
            lines.append((count, further))
        elif all(other is parts for other in layers[count:]):
            break
        reached |= further
    for count, further in lines[: MOST_LINES if len(lines) > MOST_LINES + 1 else None]:
        number = int(further.sum())
        verb = "reaches" if number == 1 else "reach"
        yield f"  after {count} layers {number} further position{'s' * (number > 1)} {verb} it: {_ranges(further)}"
    if len(lines) > MOST_LINES + 1:
        more = torch.stack([further for _, further in lines[MOST_LINES:]]).any(0)
        yield f"  after {lines[-1][0]} layers {int(more.sum())} further positions reach it: {_ranges(more)}"
    yield f"  never reach it: {_ranges(~reached)}" if not reached.all() else "  all positions reach it"


def _keys_of(parts: Parts, queries: Bool[Tensor, " T"]) -> Bool[Tensor, " T"]:
    """Return the keys that at least one of the queries reads, in any head."""
    size = len(queries)
    keys, at = torch.zeros(size, dtype=torch.bool), torch.arange(size)[None, None]
    for chunk in queries.nonzero()[:, 0].split(max(1, PAIRS // size)):
        for pattern, heads in parts:
            keys |= (
                pair_mask(pattern, chunk[None, None], at, heads)
                .expand(-1, -1, len(chunk), size)[0]
                .flatten(0, 1)
                .any(0)
            )
        if keys.all():
            break
    return keys


def _ranges(positions: Bool[Tensor, " T"]) -> str:
    return position_ranges(positions.nonzero()[:, 0].tolist())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
