"""Numbers of a pattern: keys per query, its share of all pairs, and layers until every position reaches every other."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from kinformer.attend.executors.pieces import work
from kinformer.attend.parts import parts
from kinformer.core.pattern import Pattern, pair_mask

HEADS, MOST, LONG = 4, 1024, (1_024, 4_096, 16_384)


class Numbers(NamedTuple):
    """What is counted over rows of `length` positions.

    `steps` is None where some position never reaches some other; `share` then tells how many pairs are reached at all.
    """

    length: int
    mean: float
    least: int
    most: int
    share: float
    ahead: bool
    steps: int | None
    reached: float


def numbers(pattern: Pattern, length: int) -> Numbers:
    """Counted, not estimated: over the first heads, of which reaching takes any."""
    at = torch.arange(length)[None, None]
    read = pair_mask(pattern, at, at, range(HEADS))[0]  # [#H L L]
    keys = read.sum(-1)
    one = read.any(0)
    ahead = bool(one.triu(1).any())
    steps, reached = reaching(one, ahead)
    return Numbers(
        length,
        float(keys.float().mean()),
        int(keys.min()),
        int(keys.max()),
        float(read.float().mean()),
        ahead,
        steps,
        reached,
    )


def reaching(read: Bool[Tensor, "L L"], ahead: bool) -> tuple[int | None, float]:
    """How many layers until each position has read, through others, every one that it can (only those before it where
    nothing is read ahead), and the share of these pairs that is reached at last. A position keeps what it has."""
    wanted = torch.ones_like(read) if ahead else torch.ones_like(read).tril()
    powers = [(read | torch.eye(len(read), dtype=torch.bool)) & wanted]
    while not bool((powers[-1] | ~wanted).all()):
        twice = _after(powers[-1], powers[-1])
        if torch.equal(twice, powers[-1]):
            return None, float((twice & wanted).sum() / wanted.sum())
        powers.append(twice)
    # powers[n] is 2^n layers: the largest number that is not enough, found from its highest bit on, and one more
    known, steps = torch.eye(len(read), dtype=torch.bool), 0
    for n in reversed(range(len(powers))):
        tried = _after(known, powers[n])
        if not bool((tried | ~wanted).all()):
            known, steps = tried, steps + 2**n
    return steps + 1, 1.0


def lines(pattern: Pattern, length: int) -> Iterator[str]:
    """The numbers as sentences."""
    length = min(length, MOST)
    found = numbers(pattern, length)
    least_most = f" ({found.least} to {found.most})" if found.least != found.most else ""
    yield f"keys per query   {found.mean:.4g}{least_most} of {length}"
    yield f"share            {found.share:.1%} of the full matrix"
    others = "every other" if found.ahead else "every one before it"
    if found.steps is None:
        yield f"reaches          {found.reached:.1%} of pairs, in however many layers"
    else:
        plural = "s" if found.steps != 1 else ""
        yield f"reaches          every position {others} in {found.steps} layer{plural}"
    pieces = parts(pattern, length)
    if len(pieces) > 1:
        each = ", ".join(f"{one.layout.keys_per_query(length):.4g} in {type(one.layout).__name__}" for one in pieces)
        yield f"pieces           {len(pieces)}, disjoint; keys per query that each touches: {each}"
    if not pattern.tensors():
        shares = ", ".join(f"{work(pattern, n):.2g} at {n:,}" for n in LONG)
        yield f"work             of dense attention's, as a row is read in tiles: {shares} tokens"
    if not found.ahead and (kept := pattern.capacity(length)) < length:
        yield f"decoding         a cache keeps {kept} of {length} keys"


def _after(a: Bool[Tensor, "L L"], b: Bool[Tensor, "L L"]) -> Bool[Tensor, "L L"]:
    """What is reached by a layer after another."""
    return (a.float() @ b.float()) > 0.5
