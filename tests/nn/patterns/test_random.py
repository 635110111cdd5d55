"""Random: block i // block reads `keys` blocks, drawn without repetition from first .. i // block - back."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.row_random import RowRandom
from kinformer.nn.patterns.tokens import Tokens
from tests.nn.patterns.compare import check_claims, check_drawn_blocks, read_by_heads


@pytest.mark.parametrize("keys", [1, 2, 4])
@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize(("first", "back"), [(0, 0), (0, 1), (2, 0), (2, 3)])
def test_random_draws_without_repetition_from_the_past_blocks(keys: int, block: int, first: int, back: int) -> None:
    pattern = Random(keys, block, seed=7, first=first, back=back)
    check_drawn_blocks(pattern, lambda row: set(range(first, row - back + 1)), keys, 30, block=block)


@pytest.mark.parametrize(
    "pattern",
    [Random(2), Random(2, 3, seed=5), Random(1, 2, symmetric=True), Random(2, 2, first=1, back=2), Random(2, head=1)],
    ids=repr,
)
def test_its_claims_are_those_of_all_draws(pattern: Random) -> None:
    check_claims(pattern, read_by_heads(pattern, 24, heads=1 if pattern.head == 1 else 200), 12)


class DrawsAhead(Random):
    def draw_blocks(self, h: Index, row: Tensor) -> list[Tensor]:
        return super().draw_blocks(h, row + 1)


def test_a_draw_from_the_next_block_is_noticed() -> None:
    with pytest.raises(AssertionError, match="which are no candidates"):
        check_drawn_blocks(DrawsAhead(2), lambda row: set(range(row + 1)), 2, 30)


def test_random_is_uniform_and_differs_by_head_and_seed() -> None:
    m = torch.stack([Random(3, seed=seed).matrix(20)[19] for seed in range(400)]).double()
    assert (m.mean(0) - 3 / 20).abs().max() < 5 * (0.15 * 0.85 / 400) ** 0.5
    assert not torch.equal(Random(2).matrix(40, h=0), Random(2).matrix(40, h=1))
    assert not torch.equal(Random(2, seed=1).matrix(40), Random(2, seed=2).matrix(40))


def test_random_does_not_depend_on_the_length() -> None:
    assert torch.equal(Random(2).matrix(40)[:15, :15], Random(2).matrix(15))


def test_random_symmetric_is_the_or_with_its_transpose() -> None:
    m, symmetric = Random(2, 2).matrix(20), Random(2, 2, symmetric=True).matrix(20)
    assert torch.equal(symmetric, m | m.T)


@pytest.mark.parametrize("symmetric", [False, True])
def test_bigbird_s_draws_lie_beside_the_window_and_the_first_block(symmetric: bool) -> None:
    """None of them is read anyway; a query block has as many new ones as it draws, once there are so many."""
    n = 24
    m = Random(3, seed=5, symmetric=symmetric, first=1, back=2).matrix(n)
    window_and_first = (Block(1, 1, 1) | Tokens(1)).matrix(n)
    assert not (m & window_and_first)[1:].any()
    assert (m.sum(1)[5:] >= 3).all() and (symmetric or m.sum(1)[5:].eq(3).all())


def test_random_symmetric_reads_more_the_earlier_a_query_stands() -> None:
    """As its docstring says: about keys * (1 + ln(n / i)); one that draws from rows reads as many everywhere."""
    counts = torch.stack([Random(3, seed=seed, symmetric=True).matrix(1024).sum(1) for seed in range(8)]).double()
    for first, last in ((4, 8), (80, 120), (980, 1020)):
        want = 3 * (1 + (1024 / torch.arange(first, last)).log())
        assert (counts[:, first:last].mean() - want.mean()).abs() < 1
    assert (RowRandom(torch.tensor([[1024]]), 3).matrix(1024).sum(1) == 3).all()
