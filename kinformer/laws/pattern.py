"""Law pattern: all declarations of a pattern agree with its predicate.

The predicate says whether query position q may read key position k. Other methods of a pattern declare facts about it.
`live` drops no key that a later query reads, and `capacity` gives enough slots (places of a cache). The bounds of
`reach`, `period` and `cover` are true. The `expression` and the patterns of single heads allow the same pairs. The
`parts` of the pattern are disjoint and complete, and each lies inside its layout.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from kinformer.attend.pattern_parts import parts
from kinformer.core.pattern import And, Heads, Not, Or, Pattern
from kinformer.laws.support.findings import Broken, find_smallest, findings
from kinformer.laws.support.subject import EFFORT

SAYS = "of_head, expression, reach, period, live, capacity, cover and parts agree with the predicate"
OVER = "pattern"
BATCH, HEADS = 2, 3
LENGTHS = (1, 2, 7, 13, 22) if EFFORT > 1 else (1, 7, 13)
FAR = 5000
LONGEST = 13  # longest row for patterns with tensors of a batch, because the tensors have an end
LONG = 130  # length of a further check of bounds: at 13 positions, a bound of 16 has no effect
JOINS: list[tuple[Callable[..., Pattern], int]] = [(And, 2), (And, 2), (Or, 2), (Or, 2), (Heads, 2), (Not, 1)]


def judge(pattern: Pattern) -> Iterator[str]:
    """Compare all declarations of a pattern with its predicate, and yield each difference.

    pattern: the pattern to test.

    The predicate says whether a query may read a key. Declarations are methods such as `reach` and `capacity`. Up to 13
    positions are compared, or 22 with KINFORMER_PROVE=1. `reach`, `period`, `live` and `capacity` are also compared
    over 130 positions. A pattern with tensors of the batch is compared over at most 13 positions.
    """
    for length in LENGTHS:
        if length <= LONGEST or not pattern.tensors():
            yield from find_smallest(check, length, pattern)
    if not pattern.tensors():
        yield from findings(_check_bounds, pattern)


def _check_bounds(pattern: Pattern) -> None:
    """Check reach, period, live positions and capacity over a longer row."""
    m = matrix(pattern, LONG)
    for law in (_reach, _period, _live, _capacity):
        law(pattern, m, LONG)


def check(length: int, pattern: Pattern) -> None:
    """Compare all declarations of a pattern with its predicate, over the positions 0 .. length - 1.

    length: number of positions.
    pattern: the pattern to test.

    Errors: Broken if a declaration, such as `reach` or `capacity`, is wrong.
    """
    _kinds(pattern, length)
    m = matrix(pattern, length)
    for law in (_of_head, _expression, _reach, _period, _live, _capacity, _cover, _parts):
        law(pattern, m, length)


def matrix(pattern: Pattern, length: int) -> Tensor:
    """Return the allowed pairs of a pattern as booleans [2 rows, 3 heads, queries, keys].

    pattern: the pattern.
    length: number of queries and of keys, at the positions 0 .. length - 1.
    """
    b, h, at = torch.arange(BATCH)[:, None, None, None], torch.arange(HEADS)[:, None, None], torch.arange(length)
    return torch.as_tensor(pattern(b, h, at[:, None], at)).expand(BATCH, HEADS, length, length)


def draw(atoms: Sequence[Pattern], depth: int, rng: random.Random) -> Pattern:
    """Return a random combination of patterns by "and", "or", "not" and a choice by head.

    atoms: patterns to combine; they are the leaves of the expression.
    depth: largest number of nested operators.
    rng: generator of the random numbers.
    """
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(atoms)
    join, count = rng.choice(JOINS)
    return join(*(draw(atoms, depth - 1, rng) for _ in range(count)))


def _kinds(pattern: Pattern, length: int) -> None:
    """Check types and shapes of the results, so that the other checks can compare them."""
    at = torch.arange(length)
    answer = pattern(0, 0, at[:, None], at)
    if not isinstance(answer, bool) and getattr(answer, "dtype", None) is not torch.bool:
        kind = getattr(answer, "dtype", type(answer).__name__)
        raise Broken(f"{pattern}: the predicate returns {kind}, expected bool; build it from comparisons")
    if not isinstance(answer, bool) and torch.broadcast_shapes(answer.shape, (length, length)) != (length, length):
        raise Broken(f"{pattern}: {length} queries and {length} keys give a result of shape {list(answer.shape)}")
    far = torch.tensor([0, FAR])
    try:  # a cache, or a row longer than a table, evaluates a pattern at any position
        pattern(0, 0, far[:, None], far), pattern.live(far[None], far[None, -1:])
    except Exception as error:
        raise Broken(
            f"{pattern}: the predicate or live() fails at position {FAR}: {type(error).__name__}: {error}"
        ) from error
    reach = pattern.reach()
    if not isinstance(reach, tuple) or len(reach) != 2:
        raise Broken(f"{pattern}: reach() is {reach!r}; return two numbers, how far back and how far ahead")
    if not isinstance(pattern.capacity(length), int):
        raise Broken(f"{pattern}: capacity({length}) is {pattern.capacity(length)!r}; return a whole number of slots")


def _first_index(wrong: Tensor) -> list[int]:
    return wrong.nonzero()[0].tolist()


def _of_head(pattern: Pattern, m: Tensor, length: int) -> None:
    for h in range(HEADS):
        wrong = matrix(pattern.of_head(h), length) != m[:, h : h + 1]
        if wrong.any():
            _, other, q, k = _first_index(wrong)
            raise Broken(
                f"{pattern}: of_head({h}), called with head index {other}, differs from head {h} in pair (query {q}, "
                f"key {k})"
            )


def _expression(pattern: Pattern, m: Tensor, length: int) -> None:
    spelled = pattern.expression
    if spelled is pattern:
        return
    wrong = matrix(spelled, length) != m
    if wrong.any():
        _, h, q, k = _first_index(wrong)
        raise Broken(f"{pattern}: pair (query {q}, key {k}) of head {h} differs from its expression {spelled}")


def _reach(pattern: Pattern, m: Tensor, length: int) -> None:
    back, ahead = pattern.reach()
    at = torch.arange(length)
    distance = at[:, None] - at
    wrong = m & ((distance > back) | (-distance > ahead))
    if wrong.any():
        _, h, q, k = _first_index(wrong)
        raise Broken(
            f"{pattern}: position {q} reads position {k} in head {h}, but reach() says at most "
            f"{f'{ahead} ahead' if k > q else f'{back} back'}"
        )


def _period(pattern: Pattern, m: Tensor, length: int) -> None:
    if n := pattern.period():
        wrong = m != matrix(pattern, length + n)[..., n:, n:]
        if wrong.any():
            _, h, q, k = _first_index(wrong)
            raise Broken(
                f"{pattern}: pair (query {q}, key {k}) of head {h} differs from pair (query {q + n}, "
                f"key {k + n}), but period() is {n}"
            )


def _live(pattern: Pattern, m: Tensor, length: int) -> None:
    keys = torch.arange(length).expand(BATCH, -1)
    for now in range(length):
        needed = m[:, :, now:].any(2).any(1)
        wrong = needed & ~pattern.live(keys, torch.full((BATCH, 1), now))
        if wrong.any():
            raise Broken(
                f"{pattern}: a query at position {now} or later reads position {_first_index(wrong)[1]}, but live() "
                f"drops it at position {now}"
            )


def _capacity(pattern: Pattern, m: Tensor, length: int) -> None:
    max_live, fullest = 0, 0
    for now in range(1, length + 1):  # the number of tokens in the row
        keys = torch.arange(now).expand(BATCH, -1)
        count = int(pattern.live(keys, torch.full((BATCH, 1), now)).sum(1).max())
        max_live, fullest = (count, now) if count > max_live else (max_live, fullest)
        if max_live > (slots := pattern.capacity(now)):
            raise Broken(
                f"{pattern}: {max_live} positions are live at position {fullest}, but capacity({now}) is {slots}"
            )


def _cover(pattern: Pattern, m: Tensor, length: int) -> None:
    rng = random.Random(length)
    for _ in range(25):
        q_lo, q_hi = sorted(rng.choices(range(length), k=2))
        k_lo, k_hi = sorted(rng.choices(range(length), k=2))
        block = m[:, :, q_lo : q_hi + 1, k_lo : k_hi + 1]
        any_pair, every = pattern.cover(*map(torch.tensor, (q_lo, q_hi, k_lo, k_hi)))
        where = f"{pattern}: for queries {q_lo} to {q_hi} and keys {k_lo} to {k_hi},"
        if block.any() and not any_pair.all():
            raise Broken(f"{where} some pair is allowed, but cover() says that none is")
        if every.any() and not block.all():
            raise Broken(f"{where} some pair is not allowed, but cover() says that all are")


def _parts(pattern: Pattern, m: Tensor, length: int) -> None:
    disjoint = parts(pattern, length)
    pieces = [matrix(part.where, length) for part in disjoint]
    count = reduce(torch.add, [piece.long() for piece in pieces])
    if (count != m.long()).any():
        _, h, q, k = _first_index(count != m.long())
        raise Broken(
            f"{pattern}: pair (query {q}, key {k}) of head {h} is in {int(count[0, h, q, k])} parts, expected "
            f"{int(m[0, h, q, k])}"
        )
    at = torch.arange(length)
    for part, piece in zip(disjoint, pieces, strict=True):
        outside = piece & ~part.layout.reads(at[:, None], at).expand_as(piece)
        if outside.any():
            _, _, q, k = _first_index(outside)
            raise Broken(
                f"{pattern}: part {part.where} allows pair (query {q}, key {k}), which is outside of its layout "
                f"{part.layout}"
            )
