"""Law 5.

Live is sound and capacity enough, reach and cover are true, parts are disjoint, complete and inside their layouts.
"""

import random
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from kinformer.core.parts import parts
from kinformer.core.pattern import And, Heads, Not, Or, Pattern
from kinformer.laws.broken import Broken

BATCH, HEADS = 2, 3
JOINS: list[tuple[Callable[..., Pattern], int]] = [
    (And, 2),
    (And, 2),
    (Or, 2),
    (Or, 2),
    (Heads, 2),
    (Not, 1),
]


def check(pattern: Pattern, length: int = 13) -> None:
    """Compare everything that a pattern says of itself with what its predicate does over positions 0..length-1."""
    m = matrix(pattern, length)
    for law in (_reach, _live, _capacity, _cover, _parts):
        law(pattern, m, length)


def matrix(pattern: Pattern, length: int) -> Tensor:
    """Every pair that the pattern allows: rows, heads, queries, keys."""
    b, h, at = torch.arange(BATCH)[:, None, None, None], torch.arange(HEADS)[:, None, None], torch.arange(length)
    return torch.as_tensor(pattern(b, h, at[:, None], at)).expand(BATCH, HEADS, length, length)


def draw(atoms: Sequence[Pattern], depth: int, rng: random.Random) -> Pattern:
    """An expression of at most `depth` operators on each path, over patterns of `atoms`."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(atoms)
    join, count = rng.choice(JOINS)
    return join(*(draw(atoms, depth - 1, rng) for _ in range(count)))


def _first(wrong: Tensor) -> list[int]:
    return wrong.nonzero()[0].tolist()


def _reach(pattern: Pattern, m: Tensor, length: int) -> None:
    back, ahead = pattern.reach()
    at = torch.arange(length)
    distance = at[:, None] - at
    wrong = m & ((distance > back) | (-distance > ahead))
    if wrong.any():
        _, h, q, k = _first(wrong)
        raise Broken(
            f"{pattern}: query {q} reads key {k} in head {h}, but reach() says at most {back} back and {ahead} ahead"
        )


def _live(pattern: Pattern, m: Tensor, length: int) -> None:
    keys = torch.arange(length).expand(BATCH, -1)
    for now in range(length):
        needed = m[:, :, now:].any(2).any(1)
        wrong = needed & ~pattern.live(keys, torch.full((BATCH, 1), now))
        if wrong.any():
            raise Broken(
                f"{pattern}: a query at {now} or later reads key {_first(wrong)[1]}, but live() calls it dead at {now}"
            )


def _capacity(pattern: Pattern, m: Tensor, length: int) -> None:
    slots = pattern.capacity(length)
    for now in range(1, length + 1):
        keys = torch.arange(now).expand(BATCH, -1)
        count = int(pattern.live(keys, torch.full((BATCH, 1), now)).sum(1).max())
        if count > slots:
            raise Broken(f"{pattern}: {count} keys are live at position {now}, but capacity({length}) is {slots}")


def _cover(pattern: Pattern, m: Tensor, length: int) -> None:
    rng = random.Random(length)
    for _ in range(25):
        q_lo, q_hi = sorted(rng.choices(range(length), k=2))
        k_lo, k_hi = sorted(rng.choices(range(length), k=2))
        block = m[:, :, q_lo : q_hi + 1, k_lo : k_hi + 1]
        some, every = pattern.cover(*map(torch.tensor, (q_lo, q_hi, k_lo, k_hi)))
        where = f"{pattern}: of queries {q_lo}..{q_hi} and keys {k_lo}..{k_hi}"
        if block.any() and not some.all():
            raise Broken(f"{where} some pair is allowed, but cover() says none is")
        if every.any() and not block.all():
            raise Broken(f"{where} not every pair is allowed, but cover() says that all are")


def _parts(pattern: Pattern, m: Tensor, length: int) -> None:
    found = parts(pattern, length)
    pieces = [matrix(part.where, length) for part in found]
    count = reduce(torch.add, [piece.long() for piece in pieces])
    if (count != m.long()).any():
        _, h, q, k = _first(count != m.long())
        raise Broken(
            f"{pattern}: pair ({q}, {k}) of head {h} is in {int(count[0, h, q, k])} parts, not {int(m[0, h, q, k])}"
        )
    at = torch.arange(length)
    for part, piece in zip(found, pieces, strict=True):
        outside = piece & ~part.layout.reads(at[:, None], at).expand_as(piece)
        if outside.any():
            _, _, q, k = _first(outside)
            raise Broken(
                f"{pattern}: part {part.where} allows ({q}, {k}), which its layout {part.layout} does not read"
            )
