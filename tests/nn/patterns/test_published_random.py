"""PublishedRandom: each query block reads `keys` blocks of first .. among - 1, drawn beside its window."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.nn.patterns.published_random import PublishedRandom
from tests.nn.patterns.compare import check_claims, check_drawn_blocks, read_by_heads


def candidates(first: int, window: int, among: int, row: int) -> set[int]:
    return {column for column in range(first, among) if abs(column - row) > window}


@pytest.mark.parametrize(("first", "window", "among"), [(1, 1, 9), (0, 0, 12), (2, 2, 7)])
@pytest.mark.parametrize("block", [1, 2])
def test_the_published_draw_is_of_a_fixed_run_without_repetition(
    first: int, window: int, among: int, block: int
) -> None:
    pattern = PublishedRandom(3, block, 7, among, first, window)
    check_drawn_blocks(pattern, lambda row: candidates(first, window, among, row), 3, 20 * block, block=block)


@pytest.mark.parametrize(
    "pattern",
    [
        PublishedRandom(2, among=6),
        PublishedRandom(2, 2, among=7, first=0, head=1),
        PublishedRandom(3, among=5, window=0),
    ],
    ids=repr,
)
def test_its_claims_are_those_of_all_draws(pattern: PublishedRandom) -> None:
    bounds = ("live", "capacity") if pattern.head == 1 else ()  # of one draw these know the run alone
    check_claims(pattern, read_by_heads(pattern, 45, heads=1 if pattern.head == 1 else 200), 15, bounds)


class DrawsItself(PublishedRandom):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, k) | (torch.as_tensor(q) == k)


def test_a_draw_inside_the_window_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"query 0 draws \{0\}, which are no candidates"):
        check_drawn_blocks(DrawsItself(3, among=9), lambda row: candidates(1, 1, 9, row), 3, 20)


def test_the_published_draw_is_uniform_and_the_same_at_every_length() -> None:
    m = torch.stack([PublishedRandom(2, seed=seed, among=8).matrix(10)[4] for seed in range(400)]).double()
    expected = torch.tensor([0, 1, 1, 0, 0, 0, 1, 1, 0, 0]) / 2
    assert (m.mean(0) - expected).abs().max() < 5 * (0.25 / 400) ** 0.5 and (m.mean(0)[expected == 0] == 0).all()
    long = PublishedRandom(2, 2, 1)
    assert torch.equal(long.matrix(40)[:15, :15], long.matrix(15))
    assert not torch.equal(long.matrix(40), long.matrix(40, h=1))
