"""Which cases of a test with several parametrizations every run has: in them any two values meet (pairwise testing)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

Case = Mapping[str, int]  # a number for the value of each argument


def beyond_pairs(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Items that add no two values that another of their test does not have together; the long run has them too."""
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]].append(item)
    left: list[pytest.Item] = []
    for same in tests.values():
        values = [one.callspec.params for one in same]  # type: ignore[attr-defined]
        kept = set(covering([{name: id(value) for name, value in one.items()} for one in values]))
        left += [one for n, one in enumerate(same) if n not in kept]
    return left


def covering(cases: Sequence[Case]) -> list[int]:
    """Cases, by number, in which all pairs of values meet that meet in any: ever the next with most new ones."""
    if all(len(case) <= 2 for case in cases):
        return list(range(len(cases)))
    met = [frozenset(combinations(sorted(case.items()), 2)) for case in cases]
    missing = set().union(*met)
    kept = [n for n, pairs in enumerate(met) if not pairs]
    while missing:
        best = max(range(len(met)), key=lambda n: (len(met[n] & missing), -n))
        kept.append(best)
        missing -= met[best]
    return sorted(kept)
