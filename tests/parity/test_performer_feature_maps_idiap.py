"""Random features against fast-transformers, which scales by nothing: FAVOR's hyperbolic pairs, and Fourier features of
vectors at their own length."""

import pytest
import torch

from kinformer.maps.favor import FAVOR
from kinformer.maps.random_fourier import RandomFourier
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


@goldens("performer_feature_maps_idiap")
def test_hyperbolic_features(golden: Golden) -> None:
    map = FAVOR(*golden.tensors["omega"].shape, eps=0.0, hyperbolic=True)
    map.directions.copy_(golden.tensors["omega"].T)
    phi, left = map(golden.tensors["x"].transpose(1, 2), True)
    close((phi * left.exp()[..., None]).transpose(1, 2), golden.tensors["phi_favor"])


@goldens("performer_feature_maps_idiap")
def test_fourier_features(golden: Golden) -> None:
    """x / d^(1/4) is a temperature of d^(-1/4); they put cosines first."""
    x, omega = golden.tensors["x"].transpose(1, 2), golden.tensors["omega"]
    k_dim, directions = omega.shape
    map = RandomFourier(x.shape[1], k_dim, directions, unit=False)
    map.directions.copy_(omega.T.expand_as(map.directions))
    map.sigma.data.fill_(k_dim**-0.25)
    sines, cosines = map(x, True)[0].chunk(2, -1)
    close(torch.cat([cosines, sines], -1).transpose(1, 2), golden.tensors["phi_rff"])
