"""The picture of ProbSparse attention: whole rows of the queries that are chosen."""

import torch

from kinformer.members.informer import TINY, informer
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.pages.pictures.few_queries import pictures
from kinformer.pages.pictures.who_reads import pictures as patterns


def test_few_queries_read_and_the_others_get_a_mean() -> None:
    (picture,) = pictures(ProbSparse(causal=True, factor=2), 12)
    kind = picture.panels[0].kind
    assert torch.equal(kind > 0, torch.ones(12, 12).tril().bool())
    assert int((kind[:, 0] == 1).sum()) == 6 and bool(((kind == 0) | (kind == kind[:, :1])).all())
    (picture,) = pictures(informer(**TINY, depth=1), 16)
    assert int((picture.panels[0].kind[:, 0] == 1).sum()) == 3
    assert not [one for one in patterns(informer(**TINY), 8) if "Full" in one.caption] and not list(pictures(3, 8))
