"""Pictures of structures: merged reads and stars."""

import torch

from kinformer.core.patterns.causal import Causal
from kinformer.members.performer import performer
from kinformer.nn.depth.star import PublishedStarRound, PublishedStarRounds, StarRound, StarRounds
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.low_rank_band import LowRankBand
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.pages.pictures import who_reads
from kinformer.pages.pictures.structures import merged_reads, star


def test_near_keys_and_far_ones() -> None:
    model = performer(d=16, depth=2, heads=2, features=4, window=3, length=16, vocab=11)
    (picture,) = merged_reads(model, 8)  # both layers read alike
    i, j = torch.arange(8)[:, None], torch.arange(8)
    assert torch.equal(picture.panels[0].kind, 1 * ((i - j < 3) & (j <= i)) + 2 * (i - j >= 3))
    assert not list(who_reads.pictures(model, 8))
    assert not list(merged_reads(Merged(Softmax(Causal()), LinearAttention(ELU())), 8))  # nobody knows what it reads


def test_near_keys_that_both_parts_read_are_drawn_so() -> None:
    (picture,) = who_reads.pictures(LowRankBand(2, near=Causal() & Band(2), far=Causal()), 8)
    i, j = torch.arange(8)[:, None], torch.arange(8)
    band, low = 1 + picture.kinds.index("band"), 1 + picture.kinds.index("low")
    assert picture.kinds[2:] == ("both",) and {band, low} == {1, 2}
    assert torch.equal(picture.panels[0].kind, 3 * ((i - j <= 2) & (j <= i)) + low * (i - j > 2))


def test_who_reads_whom_in_a_star() -> None:
    at = torch.arange(1, 7)
    far = (at[:, None] - at).abs()
    built = (
        (StarRounds([StarRound(8, 2)]), (far <= 1) | (far == 5)),
        (PublishedStarRounds([PublishedStarRound(8, 2)]), far <= 1),
    )
    for layer, ring in built:
        (picture,) = star(layer, 6)
        kind = picture.panels[0].kind
        assert (kind[0] == 1).all() and (kind[:, 0] == 1).all()
        assert torch.equal(kind[1:, 1:] == 2, ring) and torch.equal(kind[1:, 1:] > 0, ring)
    assert not list(star(torch.nn.Linear(2, 2), None))
