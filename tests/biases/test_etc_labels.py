"""ETCLabels: one label for each relation, and what it refuses."""

import pytest
import torch

from kinformer.attention import Attention
from kinformer.biases.etc_labels import ETCLabels
from kinformer.core.layer import Context
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.full import Full


@pytest.mark.parametrize("order", [False, True])
def test_every_relation_has_a_label_of_its_own(order: bool) -> None:
    """Global positions 0..2 stand for segments 0..2; the text's positions 3..11 are three of each."""
    bias, at = ETCLabels(1, 4, 3, 2, order=order), torch.arange(12)
    segment = torch.tensor([0, 1, 2, *[0] * 3, *[1] * 3, *[2] * 3])
    found = bias.label(at[:, None], at, segment - segment[:, None])
    names: dict[int, set[tuple]] = {}
    for i in range(12):
        for j in range(12):
            if (i < 3) == (j < 3):
                name = (i < 3, j < 3, max(-2, min(2, j - i)))
            else:
                side = (segment[j] - segment[i]).sign().item()
                name = (i < 3, j < 3, side if order else bool(side))
            names.setdefault(int(found[i, j]), set()).add(name)
    assert all(len(name) == 1 for name in names.values())
    assert sorted(names) == list(range(bias.keys.shape[1])) and len(names) == (16 if order else 14)


def test_segments_of_another_sequence_are_refused() -> None:
    layer = Attention(16, 2, Softmax(Full(), ETCLabels(2, 8, 2, 3)))
    ctx = Context(torch.arange(5)[None], below={"segment": torch.zeros(1, 4, dtype=torch.long)})
    with pytest.raises(ValueError, match="segments of 4 tokens for 5 queries and 5 keys; it serves a whole sequence"):
        layer(torch.randn(1, 5, 16), None, ctx)


def test_a_negative_clip_is_refused() -> None:
    with pytest.raises(ValueError, match="clip=-1"):
        ETCLabels(2, 8, 2, -1)
