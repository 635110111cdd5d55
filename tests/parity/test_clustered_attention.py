"""Clustered attention against fast-transformers: clusters are given, as it found them."""

import pytest

from kinformer.nn.mechanisms.clustered import Clustered
from tests.given_clusters import clusters_of, read
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


@goldens("clustered_attention")
def test_output(golden: Golden) -> None:
    close(read(Clustered(clusters_of(golden)), golden), golden.tensors["out"])
