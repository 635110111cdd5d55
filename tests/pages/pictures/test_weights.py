"""Pictures of measured attention weights."""

import torch

from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.t5 import T5
from kinformer.pages.pictures.weights import distance


def test_a_bias_is_drawn_by_what_it_leaves_of_a_weight() -> None:
    slope = 2.0**-4  # of the first of two heads
    (picture,) = distance(ALiBi(2), 6)
    at = torch.arange(6)
    expected = torch.exp(-slope * (at[:, None] - at)).tril()
    torch.testing.assert_close(picture.panels[0].level, expected)
    assert list(distance(T5(2), 6)) == []  # it has learned nothing yet
