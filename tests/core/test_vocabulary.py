"""Tokens that there are not, and what is no row of tokens, are told in one line."""

import pytest
import torch

from kinformer.core.discover import find_member
from kinformer.core.model import Model
from kinformer.core.vocabulary import check_token_rows

SIZE = {"d": 8, "depth": 1, "heads": 1, "vocab": 11}


@pytest.mark.parametrize(("name", "own"), [("gpt", 0), ("bert", 1)])
def test_a_token_beyond_the_vocabulary_is_named(name: str, own: int) -> None:
    model: Model = find_member(name)(**SIZE)
    for tokens in ([[11 + own, 1, 2]], [[1, 2, 11 + own]]):
        with pytest.raises(IndexError, match=f"token {11 + own} is out of range, expected 0 to {10 + own};"):
            model(torch.tensor(tokens))
    assert model(torch.tensor([[10, 1, 2], [3, 10, -1]])).total.isfinite()


def test_a_mark_of_padding_of_other_libraries_is_named() -> None:
    with pytest.raises(IndexError, match="token -100 is out of range, expected 0 to 10, or -1 at padding"):
        find_member("gpt")(**SIZE)(torch.tensor([[10, 1, -100]]))


def test_pairs_name_a_token_of_either_side() -> None:
    model = find_member("transformer")(**SIZE)
    good, bad = torch.tensor([[1, 2]]), torch.tensor([[1, 13]])
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(IndexError, match="token 13 is out of range, expected 0 to 12"):
            model(pair)


def test_what_is_no_row_of_tokens_is_told() -> None:
    for dtype in (torch.float32, torch.uint8, torch.bool):
        with pytest.raises(TypeError, match=rf"integers of 64 or 32 bits, got {dtype}; convert them with .long\(\)"):
            check_token_rows(torch.zeros(1, 2, dtype=dtype))
    with pytest.raises(
        ValueError, match=r"tokens must be rows \[B, T\], got shape \[3\]; pass a single row as tokens\[None\]"
    ):
        check_token_rows(torch.arange(3))
