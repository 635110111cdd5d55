"""Improved clustered attention against fast-transformers: clusters are given, as it found them."""

import pytest

from kinformer.nn.mechanisms.clustered_improved import ImprovedClustered
from tests.given_clusters import clusters_of, read
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


@goldens("improved_clustered_attention")
def test_output(golden: Golden) -> None:
    mechanism = ImprovedClustered(clusters_of(golden), golden.hyperparameters["topk"])
    close(read(mechanism, golden), golden.tensors["out"])
