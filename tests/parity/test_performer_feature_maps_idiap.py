"""FAVOR's hyperbolic features against fast-transformers, which scales by nothing. Its random Fourier features are not
compared: they leave vectors at their own length, ours put them at length 1."""

import pytest

from kinformer.maps.favor import FAVOR
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


@goldens("performer_feature_maps_idiap")
def test_hyperbolic_features(golden: Golden) -> None:
    map = FAVOR(*golden.tensors["omega"].shape, eps=0.0, hyperbolic=True)
    map.directions.copy_(golden.tensors["omega"].T)
    phi, left = map(golden.tensors["x"].transpose(1, 2), True)
    close((phi * left.exp()[..., None]).transpose(1, 2), golden.tensors["phi_favor"])
