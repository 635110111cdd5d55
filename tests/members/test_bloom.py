"""BLOOM: the published size, rows of any length, what far text counts, and what it learns without positions."""

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.laws import learns
from kinformer.members.bloom import EXAMPLES, bloom


def test_bloom_560m_has_its_559_million_parameters() -> None:
    with torch.device("meta"):
        model = bloom(d=1024, depth=24, heads=16, vocab=250880)
    assert sum(weight.numel() for weight in model.parameters()) == 559_214_592


def test_it_knows_distances_and_no_positions(float64: None) -> None:
    """A row that begins later is the same row."""
    model = bloom(d=16, depth=2, heads=2, vocab=11)
    tokens, pos = torch.randint(0, 11, (2, 9)), torch.arange(9).expand(2, 9)
    near, far = (model.logits(tokens, None, Context(pos + shift, True)).y for shift in (0, 5000))
    assert torch.allclose(near, far, atol=1e-12)
    apart = model.logits(tokens, None, Context(pos * 2)).y
    assert (apart - near).abs().max() > 1e-4


@pytest.mark.prove
def test_it_learns_to_copy_from_1_back() -> None:
    assert ["learns" in example.breaks for example in EXAMPLES] == [True]
    torch.manual_seed(0)
    accuracy, _ = learns._train(bloom(d=32, depth=2, heads=2, vocab=8), learns._from_back(1, None), 600)
    assert accuracy > learns.LEARNT
