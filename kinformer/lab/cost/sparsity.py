"""Counts of an attention pattern: keys per query, share of all pairs, and layers to connect positions."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from kinformer.attend.executors.pieces import relative_cost
from kinformer.attend.pattern_parts import parts
from kinformer.core.layout import GatheredKeys, GatheredRows, Layout, Residue
from kinformer.core.pattern import Pattern, pair_mask

HEADS, MOST, LONG = 4, 1024, (1_024, 4_096, 16_384)
NAMED = 4  # positions of gathered keys or queries that are named


class PatternNumbers(NamedTuple):
    """Counts of an attention pattern (the allowed pairs of query and key) over rows of `length` positions.

    length: number of positions.
    mean, least, most: mean, smallest and largest number of keys per query.
    share: number of allowed pairs divided by the number of all pairs.
    ahead: True if a query attends to a later key.
    steps: least number of layers through which information passes from every position to every other (or, without
        `ahead`, every later) position; None if no number suffices.
    reached: share of the pairs of positions that `steps` counts between which information passes, with any number of
        layers.
    """

    length: int
    mean: float
    least: int
    most: int
    share: float
    ahead: bool
    steps: int | None
    reached: float


def count_pattern(pattern: Pattern, length: int) -> PatternNumbers:
    """Count the allowed pairs of an attention pattern exactly, over its first four heads.

    Through layers, information passes by any of these heads.

    pattern: the pattern.
    length: number of positions.
    """
    at = torch.arange(length)[None, None]
    read = pair_mask(pattern, at, at, range(HEADS))[0]  # [#H L L]
    keys = read.sum(-1)
    any_head = read.any(0)
    ahead = bool(any_head.triu(1).any())
    steps, reached = layers_to_reach(any_head, ahead)
    mean, min_keys, max_keys, share = (
        float(x) for x in (keys.float().mean(), keys.min(), keys.max(), read.float().mean())
    )
    return PatternNumbers(length, mean, int(min_keys), int(max_keys), share, ahead, steps, reached)


def layers_to_reach(read: Bool[Tensor, "L L"], ahead: bool) -> tuple[int | None, float]:
    """Return the number of layers that connect all positions, and the share of pairs that connect at all.

    Two positions are connected if information passes from one to the other through attention in these layers. Each
    position also keeps its own information, as in a residual stream. If no query attends to a later key, only earlier
    positions have to be connected. The number of layers is None if some pairs never connect.

    read: True for each query and key that it attends to in one layer.
    ahead: True if some query attends to a later key.
    """
    readable = torch.ones_like(read) if ahead else torch.ones_like(read).tril()
    powers = [(read | torch.eye(len(read), dtype=torch.bool)) & readable]
    while not bool((powers[-1] | ~readable).all()):
        twice = _two_layers(powers[-1], powers[-1])
        if torch.equal(twice, powers[-1]):
            return None, float((twice & readable).sum() / readable.sum())
        powers.append(twice)
    # powers[n] is 2^n layers. Find the largest insufficient number of layers from its highest bit on; add one.
    reached, steps = torch.eye(len(read), dtype=torch.bool), 0
    for n in reversed(range(len(powers))):
        tried = _two_layers(reached, powers[n])
        if not bool((tried | ~readable).all()):
            reached, steps = tried, steps + 2**n
    return steps + 1, 1.0


def pattern_lines(pattern: Pattern, length: int) -> Iterator[str]:
    """Yield the counts of an attention pattern as lines of text, for `kinformer show`.

    pattern: the pattern.
    length: number of positions; at most 1,024 are counted.
    """
    length = min(length, MOST)
    counted = count_pattern(pattern, length)
    yield f"counted on a row of {length:,} positions"
    least_most = f", from {counted.least} to {counted.most}" if counted.least != counted.most else ""
    yield f"keys per query   {counted.mean:.4g}{' on average' if least_most else ''}{least_most}"
    yield f"share            {counted.share:.1%} of all pairs of query and key"
    reachable = "all positions" if counted.ahead else "all earlier positions"
    if counted.steps is None:
        yield f"connects         {counted.reached:.1%} of all pairs, however many layers there are"
    else:
        plural = "s" if counted.steps != 1 else ""
        yield f"connects         after {counted.steps} layer{plural}, every position can reach {reachable}"
    pieces = parts(pattern, length)
    for n, piece in enumerate(pieces if len(pieces) > 1 else ()):
        keys = f"{count_pattern(piece.where, length).mean:.4g} of the {counted.mean:.4g} keys"
        yield f"{'' if n else 'pieces':<17}{keys}: {layout_words(piece.layout)}"
    if not pattern.tensors():
        first, *others = (f"at {n:,}" for n in LONG)
        shares = [_percent(relative_cost(pattern, n)) for n in LONG]
        rest = "".join(f", {share} {at}" for share, at in zip(shares[1:], others, strict=True))
        yield f"estimated cost   {shares[0]} of full attention {first} tokens{rest}; whole tiles are included"
    if not counted.ahead and (capacity := pattern.capacity(length)) < length:
        yield f"decoding         the cache keeps {capacity} earlier keys"


def _percent(share: float) -> str:
    """Return a share as a percentage with about two digits, such as "4.2%"."""
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def layout_words(layout: Layout) -> str:
    """Return a layout of keys in words, such as "window (8 back, 0 ahead)".

    layout: the layout.
    """
    window = ", ".join(
        f"{'all' if size == math.inf else int(size)} {side}"
        for size, side in ((layout.back, "back"), (layout.ahead, "ahead"))
    )
    match layout:
        case Residue(n=n):
            return f"multiples of {n} ({window})"
        case GatheredKeys(p=positions, period=period):
            return f"keys {_list_positions(positions)}{f' of every {period}' if period else ''} ({window})"
        case GatheredRows(p=positions):
            return f"queries {_list_positions(positions)} ({window})"
    return f"window ({window})"


def _list_positions(positions: tuple[int, ...]) -> str:
    return ", ".join(map(str, positions[:NAMED])) + ", ..." * (len(positions) > NAMED)


def _two_layers(a: Bool[Tensor, "L L"], b: Bool[Tensor, "L L"]) -> Bool[Tensor, "L L"]:
    """Return the pairs that two layers reach one after the other."""
    return (a.float() @ b.float()) > 0.5
