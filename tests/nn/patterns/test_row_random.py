"""RowRandom: each query block of row b reads `keys` blocks of first .. blocks[b] - 1, drawn beside its window."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.nn.patterns.row_random import RowRandom
from tests.nn.patterns.compare import check_claims, check_drawn_blocks, read_by_heads

BLOCKS = torch.tensor([[1], [5], [20]])


def candidates(first: int, blocks: int, window: int, row: int) -> set[int]:
    return {column for column in range(first, blocks) if abs(column - row) > window}


@pytest.mark.parametrize(
    ("keys", "block", "first", "window"), [(1, 1, 0, -1), (3, 1, 0, 0), (2, 3, 1, 1), (4, 2, 2, 0)]
)
def test_row_random_draws_as_many_for_every_query_of_every_row(keys: int, block: int, first: int, window: int) -> None:
    pattern = RowRandom(BLOCKS, keys, block, 7, first, window)
    for b, blocks in enumerate(BLOCKS[:, 0].tolist()):
        check_drawn_blocks(
            pattern, lambda row, n=blocks: candidates(first, n, window, row), keys, blocks * block, block=block, b=b
        )


@pytest.mark.parametrize(("keys", "block", "first", "window"), [(2, 1, 0, -1), (2, 3, 1, 1)])
def test_its_claims_hold_for_all_draws(keys: int, block: int, first: int, window: int) -> None:
    pattern = RowRandom(BLOCKS[:2], keys, block, 5, first, window)
    check_claims(pattern, read_by_heads(pattern, 24, rows=2), 18)


class FirstRow(RowRandom):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(0, h, q, k)


def test_draws_from_the_blocks_of_another_row_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 draws 1 blocks"):
        check_drawn_blocks(FirstRow(BLOCKS, 3), lambda row: candidates(0, 5, -1, row), 3, 5, b=1)


def test_row_random_is_uniform_and_differs_by_head_seed_and_length() -> None:
    m = torch.stack([RowRandom(torch.tensor([[20]]), 3, seed=seed).matrix(20)[[0, 7, 19]] for seed in range(400)])
    assert (m.double().mean(0) - 3 / 20).abs().max() < 5 * (0.15 * 0.85 / 400) ** 0.5
    pattern = RowRandom(torch.tensor([[40], [80]]), 2)
    assert not torch.equal(pattern.matrix(40, h=0), pattern.matrix(40, h=1))
    assert pattern.matrix(80, b=1)[:20, 40:].any()  # early ones read late ones as often
