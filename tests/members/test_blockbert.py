"""BlockBERT: the equation, which head reads which block, and how heads are shared out."""

from typing import Any

import pytest
import torch

from kinformer.members.blockbert import blockbert
from tests.by_hand import attention_by_hand


def pattern(**keywords: Any) -> Any:
    model: Any = blockbert(d=24, depth=1, vocab=11, **keywords)
    return model.body.layers[0].layers[0].mechanism.pattern


@pytest.mark.parametrize(
    ("heads", "blocks", "shares", "expected"),
    [
        (12, 2, None, [0] * 10 + [1] * 2),
        (12, 3, None, [0] * 8 + [1] * 2 + [2] * 2),
        (4, 2, None, [0, 0, 1, 1]),
        (3, 3, None, [0, 1, 2]),
        (4, 2, (3, 1), [0, 0, 0, 1]),
        (4, 3, (2, 0, 2), [0, 0, 2, 2]),
    ],
)
def test_each_head_reads_the_block_of_its_shift(
    heads: int, blocks: int, shares: tuple[int, ...] | None, expected: list[int]
) -> None:
    model, size = pattern(heads=heads, blocks=blocks, shares=shares, length=11), -(-11 // blocks)
    at = torch.arange(11)
    for h, shift in enumerate(expected):
        assert torch.equal(model.matrix(11, h=h), at // size == ((at // size + shift) % blocks)[:, None])


def test_it_is_the_equation(float64: None) -> None:
    sizes = ((1, 2, 0), (2, 1, 0))
    model: Any = blockbert(
        d=12, depth=1, heads=3, blocks=3, permutations=("1-2-0", "2-1-0"), shares=(1, 2), length=11, vocab=7
    )
    layer, x = model.body.layers[0].layers[0], torch.randn(11, 12)
    turns = (sizes[0], sizes[1], sizes[1])
    expected = attention_by_hand(layer, x, lambda h, i, j: j // 4 == turns[h][i // 4])
    torch.testing.assert_close(layer(x[None]).y[0], expected)


@pytest.mark.parametrize("text", ["0-1", "0-0-1", "1-2-3", "a-b-c", "0-1-2-3", ""])
def test_what_is_no_permutation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"permutation '{text}' is invalid for 3 blocks; .* as '1-2-0'"):
        blockbert(d=12, heads=3, blocks=3, permutations=(text,))


@pytest.mark.parametrize(("heads", "blocks", "shares"), [(4, 3, None), (4, 2, (4,)), (4, 2, (3, 2)), (4, 2, (5, -1))])
def test_shares_that_do_not_fit_are_refused(heads: int, blocks: int, shares: tuple[int, ...] | None) -> None:
    with pytest.raises(
        ValueError,
        match=rf"4 heads cannot be divided among {blocks} permutations: got shares .*"
        "give one number of heads for each permutation, 4 in total",
    ):
        blockbert(d=16, heads=heads, blocks=blocks, shares=shares)


def test_a_row_beyond_the_blocks_is_refused() -> None:
    model = blockbert(d=16, depth=1, heads=2, length=8, vocab=11)
    with pytest.raises(IndexError, match="position 8 is beyond the table of 8"):
        model.logits(torch.zeros(1, 9, dtype=torch.long))
