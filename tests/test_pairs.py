"""Of a test with many parametrizations every run has cases in which any two values meet."""

from itertools import combinations, product

import pytest

from tests.pairs import covering


@pytest.mark.parametrize("sizes", [(1,), (5,), (3, 4), (2, 2, 2), (4, 3, 4, 2), (2, 7, 1, 3)], ids=str)
def test_any_two_values_meet_and_few_cases_are_kept(sizes: tuple[int, ...]) -> None:
    names = [f"argument {n}" for n in range(len(sizes))]
    cases = [dict(zip(names, values, strict=True)) for values in product(*map(range, sizes))]
    chosen = [cases[n] for n in covering(cases)]
    for values, other in combinations(names, 2):
        pairs = {(case[values], case[other]) for case in cases}
        assert {(case[values], case[other]) for case in chosen} == pairs
    assert all(any(case[name] == value for case in chosen) for case in cases for name, value in case.items())
    assert (
        len(chosen) == len(cases)
        if len(sizes) < 3
        else len(chosen) <= 2 * max(a * b for a, b in combinations(sizes, 2))
    )


def test_arguments_that_are_given_together_are_one() -> None:
    cases = [{"a": n, "b": n, "c": m} for n in range(4) for m in range(3)]
    assert covering(cases) == list(range(12))


def test_a_case_without_arguments_to_pair_is_kept() -> None:
    assert covering([{}, {"a": 0}, {"a": 1}]) == [0, 1, 2]
