"""Law sharp: the bounds that a pattern declares are as tight as its predicate permits.

The predicate says which keys a query may read. Bounds such as `reach` and `capacity` must be true, as the law `pattern`
tests. A bound that is too wide gives right results but costs time and memory, so only this law detects it.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kinformer.core.pattern import And, Heads, Not, Or, Pattern, Spelled
from kinformer.laws.support.findings import Broken, Unjudged, findings

SAYS = "reach, period, live, capacity and cover are as tight as the predicate permits"
OVER = "pattern"
HEADS = 400  # enough heads for a random pattern to draw every possible block
LENGTH = 40
CACHED = 64  # longest row for which `capacity` is checked
AHEAD = 64  # number of further queries that show which keys are read again
BLOCKS = 48


def judge(pattern: Pattern) -> Iterator[str]:
    """Compare the bounds that a pattern declares with the tightest true bounds; yield each difference.

    pattern: the pattern to test. Methods that it inherits from `Pattern` are not compared.

    The bounds are `reach`, `period`, `live`, `capacity` and `cover`. A pattern that is composed of others, such as
    `Causal() & Band(3)`, is not tested.
    """
    spelled = pattern
    while isinstance(spelled, Spelled):
        spelled = spelled.expression
    if isinstance(spelled, And | Or | Not | Heads):
        raise Unjudged("a pattern composed of others need not have the tightest declarations")
    declared = [law for name, law in LAWS.items() if getattr(type(spelled), name) is not getattr(Pattern, name)]
    if not declared:
        raise Unjudged("the pattern declares no bounds (reach, period, live, capacity, cover) of its own")
    for law in declared:
        yield from findings(law, pattern)


def read(pattern: Pattern, length: int) -> tuple[Tensor, Tensor]:
    """Return the pairs that a pattern allows in some row and head, and the pairs that it allows in all.

    pattern: the pattern. Its tensors determine the number of rows.
    length: number of queries and of keys. The result has two boolean matrices of this size.
    """
    rows = max((len(tensor) for tensor in pattern.tensors().values()), default=1)
    b, h, at = torch.arange(rows)[:, None, None, None], torch.arange(HEADS)[:, None, None], torch.arange(length)
    m = torch.as_tensor(pattern(b, h, at[:, None], at))
    m = m.expand(torch.broadcast_shapes(m.shape, (1, 1, length, length))).flatten(0, 1)
    return m.any(0), m.all(0)


def _reach(pattern: Pattern) -> None:
    declared = pattern.reach()
    length = AHEAD + 2 * max((int(abs(side)) for side in declared if math.isfinite(side)), default=0)
    is_read, at = read(pattern, length)[0], torch.arange(length)
    distance = (at[:, None] - at)[is_read]
    if not len(distance):
        return
    for side, word, far in zip(declared, ("back", "ahead"), (int(distance.max()), -int(distance.min())), strict=True):
        if far < (length // 2 if side == math.inf else side):
            raise Broken(f"{pattern}: queries read at most {far} {word}, but reach() says {side}")


def _period(pattern: Pattern) -> None:
    if (n := pattern.period()) is None:
        return
    m = read(pattern, 4 * n)[0]
    for less in range(1, n):
        if bool((m[less:, less:] == m[:-less, :-less]).all()):
            raise Broken(f"{pattern}: the allowed pairs repeat every {less} positions, but period() is {n}")


def _needed_keys(pattern: Pattern, length: int) -> Tensor:
    """Return for each position up to `length` the keys that a query there or later reads."""
    is_read = read(pattern, length + AHEAD)[0]
    return is_read.flip(0).cummax(0).values.flip(0)[: length + 1, :length]


def _live(pattern: Pattern) -> None:
    length = LENGTH
    now, keys = torch.arange(length + 1)[:, None], torch.arange(length).expand(length + 1, -1)
    wrong = pattern.live(keys, now) & ~_needed_keys(pattern, length)
    if wrong.any():
        at, k = wrong.nonzero()[0].tolist()
        raise Broken(f"{pattern}: no query at position {at} or later reads position {k}, but live() keeps it")


def _capacity(pattern: Pattern) -> None:
    # only keys before the query count; a longer row needs at least as many slots
    needed_slots = _needed_keys(pattern, CACHED).tril(-1).sum(1).cummax(0).values.tolist()
    for length, slots in enumerate(needed_slots):
        if pattern.capacity(length) > slots:
            raise Broken(f"{pattern}: {slots} slots are enough, but capacity({length}) is {pattern.capacity(length)}")


def _cover(pattern: Pattern) -> None:
    length, rng = LENGTH, random.Random(0)
    any_read, every = read(pattern, length)
    lows = [[rng.randrange(length) for _ in range(BLOCKS)] for _ in range(2)]
    highs = [[rng.randrange(low, min(length, low + 1 + n)) for n, low in enumerate(side)] for side in lows]
    (q_lo, k_lo), (q_hi, k_hi) = torch.tensor(lows), torch.tensor(highs)
    declared = pattern.cover(q_lo[:, None], q_hi[:, None], k_lo, k_hi)  # many blocks at once, as executors call it
    may, must = (answer.expand(BLOCKS, BLOCKS).tolist() for answer in declared)
    for n, m in itertools.product(range(BLOCKS), repeat=2):
        box = slice(q_lo[n], q_hi[n] + 1), slice(k_lo[m], k_hi[m] + 1)
        where = f"{pattern}: for queries {q_lo[n]} to {q_hi[n]} and keys {k_lo[m]} to {k_hi[m]},"
        if may[n][m] != bool(any_read[box].any()):
            raise Broken(f"{where} {'no' if may[n][m] else 'some'} pair is read, but cover() says the opposite")
        if must[n][m] != bool(every[box].all()):
            raise Broken(
                f"{where} {'not every' if must[n][m] else 'every'} pair is read, but cover() says the opposite"
            )


LAWS: dict[str, Callable[[Pattern], None]] = {
    "reach": _reach,
    "period": _period,
    "live": _live,
    "capacity": _capacity,
    "cover": _cover,
}
