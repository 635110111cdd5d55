"""GPT: the published size, what is tied, and where its length ends."""

import pytest
import torch

from kinformer.members.gpt import gpt


def test_gpt2_small_has_its_124_million_parameters() -> None:
    with torch.device("meta"):
        model = gpt(d=768, depth=12, heads=12, length=1024, vocab=50257)
    assert sum(weight.numel() for weight in model.parameters()) == 124_439_808


def test_the_head_is_the_embedding() -> None:
    model = gpt(d=16, depth=1, heads=2, length=8, vocab=11)
    assert model.head.weight is model.embedding.weight
    assert not any(name.startswith("head") for name, _ in model.named_parameters())


def test_a_row_beyond_its_length_is_an_error_that_says_so() -> None:
    model = gpt(d=16, depth=1, heads=2, length=8, vocab=11)
    model.logits(torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(IndexError, match="position 8 is beyond the table of 8"):
        model.logits(torch.zeros(1, 9, dtype=torch.long))
