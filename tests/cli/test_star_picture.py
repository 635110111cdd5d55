"""The picture of a star: the relay's row and column, and a ring that closes, or whose ends are open."""

import torch

from kinformer.nn.depth.star import PublishedStarRound, PublishedStarRounds, StarRound, StarRounds
from kinformer.pages.pictures.star import pictures


def test_who_reads_whom_in_a_star() -> None:
    at = torch.arange(1, 7)
    far = (at[:, None] - at).abs()
    made = (
        (StarRounds([StarRound(8, 2)]), (far <= 1) | (far == 5)),
        (PublishedStarRounds([PublishedStarRound(8, 2)]), far <= 1),
    )
    for layer, ring in made:
        (picture,) = pictures(layer, 6)
        kind = picture.panels[0].kind
        assert (kind[0] == 1).all() and (kind[:, 0] == 1).all()
        assert torch.equal(kind[1:, 1:] == 2, ring) and torch.equal(kind[1:, 1:] > 0, ring)
    assert not list(pictures(torch.nn.Linear(2, 2), None))
