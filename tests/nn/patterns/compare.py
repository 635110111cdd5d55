"""A pattern against a definition in plain Python: every pair of a query and a key, and each claim of the pattern.

The claims are reach, period, live positions, capacity and cover, besides its expression, heads and layout. Any claim
must be true. A claim that the pattern's own class declares must also be exact, unless `bounds` names it.
"""

import math
import random
from collections.abc import Callable, Sequence

import torch

from kinformer.core.pattern import Pattern, Spelled

Reads = Callable[[int, int, int, int], bool]  # may query i read key j, in row b and head h: reads(b, h, i, j)
Table = list[list[bool]]  # queries down, keys across
LENGTH = 17
BLOCKS = 120


def compare(
    pattern: Pattern,
    reads: Reads,
    *,
    length: int = LENGTH,
    size: int | None = None,
    rows: int = 1,
    heads: int = 1,
    bounds: Sequence[str] = (),
) -> None:
    """AssertionError if a pair or a claim of a pattern differs from the double loop over `reads`.

    length: positions over which live positions, capacity and cover are compared.
    size: positions of the double loop, three times `length` unless given. Later queries tell which keys stay live.
    bounds: claims of the pattern's class that may be looser than the loop, such as "cover".
    """
    __tracebackhide__ = True
    size = 3 * length if size is None else size
    places = range(size)
    expected = [[[[reads(b, h, i, j) for j in places] for i in places] for h in range(heads)] for b in range(rows)]
    check_pairs(pattern, expected)
    check_pairs(pattern.expression, expected, f"expression of {pattern}: ")
    for h in range(heads):
        check_pairs(pattern.of_head(h), [[row[h]] for row in expected], f"of_head({h}): ")
    check_layout(pattern, expected)
    check_claims(pattern, expected, length, bounds)


def check_pairs(pattern: Pattern, expected: list[list[Table]], prefix: str = "") -> None:
    """AssertionError with the first pair of a row and a head that a pattern reads otherwise than expected."""
    __tracebackhide__ = True
    rows, heads, size = len(expected), len(expected[0]), len(expected[0][0])
    b, h, at = torch.arange(rows)[:, None, None, None], torch.arange(heads)[:, None, None], torch.arange(size)
    reads = torch.as_tensor(pattern(b, h, at[:, None], at)).expand(rows, heads, size, size)
    for row, head, i, j in (reads != torch.tensor(expected)).nonzero().tolist():
        raise AssertionError(
            f"{prefix}{pattern}: query {i} and key {j} of row {row} and head {head} are "
            f"{'read' if reads[row, head, i, j] else 'not read'}, and the definition says otherwise"
        )


def check_layout(pattern: Pattern, expected: list[list[Table]]) -> None:
    """AssertionError with a pair that is read and lies outside the layout of a pattern."""
    __tracebackhide__ = True
    at = torch.arange(len(expected[0][0]))
    inside = pattern.layout.reads(at[:, None], at)
    for _, _, i, j in (torch.tensor(expected) & ~inside).nonzero().tolist():
        raise AssertionError(f"{pattern}: query {i} reads key {j}, which its layout {pattern.layout} does not hold")


def check_drawn_blocks(
    pattern: Pattern, candidates: Callable[[int], set[int]], keys: int, size: int, *, block: int = 1, b: int = 0
) -> None:
    """AssertionError unless each query block reads `keys` whole blocks of its candidates, or all if there are fewer.

    candidates: the blocks that a query block may draw, by its number.
    size: positions that are compared, a whole number of blocks; the draws of 3 heads are compared.
    """
    __tracebackhide__ = True
    for h in range(3):
        for i, row in enumerate(pattern.matrix(size, b=b, h=h).tolist()):
            blocks = {j // block for j, read in enumerate(row) if read}
            allowed = candidates(i // block)
            assert blocks <= allowed, f"{pattern}: query {i} draws {blocks - allowed}, which are no candidates"
            assert len(blocks) == min(keys, len(allowed)), f"{pattern}: query {i} draws {len(blocks)} blocks"
            assert sum(row) == block * len(blocks), f"{pattern}: query {i} reads parts of blocks"


def read_by_heads(pattern: Pattern, size: int, heads: int = 200, rows: int = 1) -> list[list[Table]]:
    """The pairs that a pattern reads, by rows and heads; enough heads that each possible draw occurs."""
    return [[pattern.matrix(size, b=b, h=h).tolist() for h in range(heads)] for b in range(rows)]


def check_claims(pattern: Pattern, expected: list[list[Table]], length: int, bounds: Sequence[str] = ()) -> None:
    """AssertionError for a claim that is not true, or that is declared, no bound, and not exact."""
    __tracebackhide__ = True
    tables = [table for row in expected for table in row]
    places = range(len(tables[0]))
    by_any = [[any(table[i][j] for table in tables) for j in places] for i in places]
    by_all = [[all(table[i][j] for table in tables) for j in places] for i in places]
    _check_reach(pattern, by_any, _is_exact(pattern, "reach", bounds))
    _check_period(pattern, tables, _is_exact(pattern, "period", bounds))
    _check_live(pattern, by_any, length, _is_exact(pattern, "live", bounds))
    _check_capacity(pattern, by_any, length, _is_exact(pattern, "capacity", bounds))
    _check_cover(pattern, by_any, by_all, length, _is_exact(pattern, "cover", bounds))


def _is_exact(pattern: Pattern, claim: str, bounds: Sequence[str]) -> bool:
    """Does the pattern's own class make the claim? An expression's claims are those of its operands."""
    declared = not isinstance(pattern, Spelled) and getattr(type(pattern), claim) is not getattr(Pattern, claim)
    return declared and claim not in bounds


def _check_reach(pattern: Pattern, by_any: Table, exact: bool) -> None:
    __tracebackhide__ = True
    distances = [i - j for i, row in enumerate(by_any) for j, read in enumerate(row) if read]
    if not distances:
        return
    for claimed, furthest in zip(pattern.reach(), (max(distances), -min(distances)), strict=True):
        endless = claimed == math.inf and furthest >= len(by_any) // 2
        holds = furthest == claimed or endless if exact else furthest <= claimed
        assert holds, f"{pattern}: reach() is {pattern.reach()}, and the furthest key is {furthest} away"


def _check_period(pattern: Pattern, tables: list[Table], exact: bool) -> None:
    __tracebackhide__ = True
    period = pattern.period()
    if period is None:
        return
    repeats = [n for n in range(1, period + 1) if all(_repeats(table, n) for table in tables)]
    holds = repeats == [period] if exact else period in repeats
    assert holds, f"{pattern}: period() is {period}, and the pairs repeat after {repeats}"


def _repeats(table: Table, n: int) -> bool:
    return all(later[n:] == row[:-n] for row, later in zip(table, table[n:], strict=False))


def _check_live(pattern: Pattern, by_any: Table, length: int, exact: bool) -> None:
    __tracebackhide__ = True
    keys = torch.arange(length)[None]
    for now in range(length):
        claimed = pattern.live(keys, torch.tensor([[now]])).any(0).tolist()
        for j, (is_live, is_read) in enumerate(zip(claimed, _read_from(by_any, now, length), strict=True)):
            holds = is_live == is_read if exact else is_live or not is_read
            assert holds, f"{pattern}: live() of key {j} at position {now} is {is_live}"


def _check_capacity(pattern: Pattern, by_any: Table, length: int, exact: bool) -> None:
    __tracebackhide__ = True
    least = 0
    for now in range(length):
        least = max(least, sum(_read_from(by_any, now, length)[:now]))
        slots = pattern.capacity(now)
        holds = slots == least if exact else slots >= least
        assert holds, f"{pattern}: capacity({now}) is {slots}, and the least that is enough is {least}"


def _read_from(by_any: Table, now: int, length: int) -> list[bool]:
    """Which keys does a query at position `now` or later read?"""
    return [any(row[j] for row in by_any[now:]) for j in range(length)]


def _check_cover(pattern: Pattern, by_any: Table, by_all: Table, length: int, exact: bool) -> None:
    __tracebackhide__ = True
    rng = random.Random(0)
    sides = [sorted(rng.choices(range(length), k=2)) for _ in range(BLOCKS)]
    sides += [[low, min(length - 1, low + n % 3)] for n, low in enumerate(rng.choices(range(length), k=BLOCKS))]
    blocks = [([0, 0], [0, 0]), *zip(sides, rng.sample(sides, len(sides)), strict=True)]
    q, k = (torch.tensor(ends) for ends in zip(*blocks, strict=True))
    claimed = pattern.cover(q[:, 0], q[:, 1], k[:, 0], k[:, 1])
    may, must = (torch.as_tensor(claim).expand(len(blocks)).tolist() for claim in claimed)
    for n, ((top, bottom), (left, right)) in enumerate(blocks):
        has_any = any(any(row[left : right + 1]) for row in by_any[top : bottom + 1])
        has_all = all(all(row[left : right + 1]) for row in by_all[top : bottom + 1])
        holds = (may[n], must[n]) == (has_any, has_all) if exact else may[n] >= has_any and must[n] <= has_all
        assert holds, (
            f"{pattern}: cover({top}, {bottom}, {left}, {right}) is {may[n]}, {must[n]}, and the pairs say "
            f"{has_any}, {has_all}"
        )
