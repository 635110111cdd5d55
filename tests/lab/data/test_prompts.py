"""Texts to go on from: draws of a split, of which none reads what another did."""

import pytest
import torch

from kinformer.lab.data.text import TextData
from kinformer.members.gpt import gpt


def test_windows_of_a_split_stand_side_by_side_within_documents() -> None:
    begins, numbers = torch.tensor([0, 7, 7, 40, 43]), torch.arange(100)
    text = TextData("numbers", numbers, numbers, numbers, begins={"valid": begins})
    model = gpt(d=8, depth=1, heads=1)
    prompts = text.prompts(model, "valid", 16, 3, 2)  # 1 + 0 + 6 + 0 + 11 windows of five stand there
    rows = [[*prompt, *reference] for prompt, reference in zip(prompts.prompts, prompts.references, strict=True)]
    tokens = [token for row in rows for token in row]
    assert len(rows) == 16 and len(set(tokens)) == len(tokens) == 80
    for row in rows:
        assert row == list(range(row[0], row[0] + 5))
        assert len(torch.searchsorted(begins, torch.tensor(row), right=True).unique()) == 1
    assert prompts == text.prompts(model, "valid", 16, 3, 2) and rows != sorted(rows)
    with pytest.raises(
        ValueError, match="19 windows of 5 tokens of valid, side by side, were requested, but there are 18"
    ):
        text.prompts(model, "valid", 19, 3, 2)
