"""The picture of what a memory keeps."""

import torch

from kinformer.core.pattern_parser import parse
from kinformer.nn.memories.compressed_positions import BySlots, ByTokens
from kinformer.nn.memories.compression import MeanPool
from kinformer.nn.memories.compressive import Compressive
from kinformer.nn.memories.hidden import Hidden
from kinformer.pages.pictures import slots


def test_slots_of_a_memory_are_those_that_it_hands_to_its_layer() -> None:
    for places in (BySlots(), ByTokens()):  # the same tokens are in them, wherever they are said to stand
        (picture,) = slots.pictures(Compressive(4, 4, 2, MeanPool(2), places=places), 24)
        row = picture.panels[0].kind[18].tolist()  # its segment is 16..19, the memory 12..15, two slots of two before
        assert row == [0] * 8 + [3, 3, 4, 4] + [2] * 4 + [1] * 3 + [0] * 5
    (picture,) = slots.pictures(Hidden(5, 3), 20)
    kind = picture.panels[0].kind
    at = torch.arange(20)
    inside = at[:, None] // 5 == at // 5
    assert torch.equal(kind == 1, inside.tril()) and picture.kinds == ("own segment", "memory")
    assert torch.equal(kind == 2, parse("Causal() & Segment(5, 3)").matrix(20) & ~inside)
