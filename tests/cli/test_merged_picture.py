"""The picture of merged reads: a window, and what is estimated behind it."""

import torch

from kinformer.cli.pictures import who_reads
from kinformer.cli.pictures.merged import pictures
from kinformer.maps.elu import ELU
from kinformer.mechanisms.linear import LinearAttention
from kinformer.mechanisms.merged import Merged
from kinformer.mechanisms.softmax import Softmax
from kinformer.members.performer import performer
from kinformer.patterns.causal import Causal


def test_near_keys_and_far_ones() -> None:
    model = performer(d=16, depth=2, heads=2, features=4, window=3, length=16, vocab=11)
    (picture,) = pictures(model, 8)  # both layers read alike
    i, j = torch.arange(8)[:, None], torch.arange(8)
    assert torch.equal(picture.panels[0].kind, 1 * ((i - j < 3) & (j <= i)) + 2 * (i - j >= 3))
    assert not list(who_reads.pictures(model, 8))
    assert not list(pictures(Merged(Softmax(Causal()), LinearAttention(ELU())), 8))  # nobody knows what it reads
