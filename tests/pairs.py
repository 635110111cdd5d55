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
        values = [params.callspec.params for params in same]  # type: ignore[attr-defined]
        chosen = set(covering([{name: id(value) for name, value in params.items()} for params in values]))
        left += [params for n, params in enumerate(same) if n not in chosen]
    return left


def covering(cases: Sequence[Case]) -> list[int]:
    """Cases, by number, in which all pairs of values meet that meet in any: ever the next with most new ones."""
    if all(len(case) <= 2 for case in cases):
        return list(range(len(cases)))
    pairs_of = [frozenset(combinations(sorted(case.items()), 2)) for case in cases]
    missing = set().union(*pairs_of)
    chosen = [n for n, pairs in enumerate(pairs_of) if not pairs]
    while missing:
        best = max(range(len(pairs_of)), key=lambda n: (len(pairs_of[n] & missing), -n))
        chosen.append(best)
        missing -= pairs_of[best]
    return sorted(chosen)
