"""The picture of clusters: queries sorted by them, and what those weigh by themselves."""

import pytest
import torch

from kinformer.core.patterns.full import Full
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.clustered_improved import ImprovedClustered
from kinformer.nn.mechanisms.hamming_kmeans import HammingKMeans
from kinformer.nn.mechanisms.topk import TopK
from kinformer.pages.pictures.clusters import pictures
from kinformer.pages.pictures.support.picture_panels import kinds_in


def test_of_the_plain_form_all_queries_of_a_cluster_take_alike() -> None:
    (picture,) = pictures(Clustered(HammingKMeans(8, 3)), None)
    assert kinds_in(picture) == [1] and len(picture.kinds) == 1
    panel = picture.panels[1]
    begins = [n for n, name in enumerate(panel.rows) if name]
    assert panel.level.shape == (24, 24) and panel.rows[0] == "cluster 0" and 1 < len(begins) <= 3
    for begin, end in zip(begins, [*begins[1:], 24], strict=True):
        torch.testing.assert_close(panel.level[begin:end], panel.level[begin].expand(end - begin, -1))
    assert not list(pictures(TopK(Full(), 2), None))


@pytest.mark.parametrize("length", [None, 40])
def test_of_the_improved_form_each_weighs_its_best_keys(length: int | None) -> None:
    (picture,) = pictures(ImprovedClustered(HammingKMeans(8, 2), 4), length)
    assert kinds_in(picture) == [1, 2]
    panel = picture.panels[1]
    if length is None:
        assert bool(((panel.kind == 2).sum(1) == 4).all())
    else:
        assert panel.kind.shape == (20, 20)  # cells of two by two
