"""Random features against fast-transformers, which scales by nothing: FAVOR's hyperbolic pairs, and Fourier features of
vectors at their own length. Every output of a golden is compared, and what their products estimate."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")
NAME = "performer_feature_maps_idiap"


def favor(golden: Golden) -> FAVOR:
    """Both signs of their directions, as the paper's hyperbolic features have them."""
    omega = golden.tensors["omega"]  # [d_k, n_dims / 2]
    map = FAVOR(*omega.shape, eps=0.0, hyperbolic=True)
    map.directions.copy_(omega.T)
    return map


def fourier(golden: Golden) -> RandomFourier:
    """x / d^(1/4) is a temperature of d^(-1/4)."""
    omega, heads = golden.tensors["omega"], golden.tensors["x"].shape[2]
    map = RandomFourier(heads, *omega.shape, unit=False)
    map.directions.copy_(omega.T.expand_as(map.directions))
    map.sigma.data.fill_(len(omega) ** -0.25)
    return map


def phi_favor(golden: Golden, x: Tensor) -> Tensor:
    phi, left = favor(golden)(x, True)
    return phi * left.exp()[..., None]


def phi_rff(golden: Golden, x: Tensor) -> Tensor:
    """They put cosines first."""
    sines, cosines = fourier(golden)(x, True)[0].chunk(2, -1)
    return torch.cat([cosines, sines], -1)


OUTPUTS: dict[str, Callable[[Golden, Tensor], Tensor]] = {"phi_favor": phi_favor, "phi_rff": phi_rff}


@goldens(NAME)
def test_every_output(golden: Golden) -> None:
    x = golden.tensors["x"].transpose(1, 2)
    outputs = [name for name, entry in golden.json["tensors"].items() if entry["kind"] == "output"]
    assert outputs, "the golden names no output"
    for name in outputs:
        phi = OUTPUTS[name](golden, x)
        assert phi.shape[-1] == golden.hyperparameters["n_dims"]
        close(phi.transpose(1, 2), golden.tensors[name])


@goldens(NAME)
def test_attention_over_all_keys_is_that_of_their_features(golden: Golden) -> None:
    """x asks x: products of their positive features, over their sum."""
    x, theirs = (golden.tensors[name].transpose(1, 2) for name in ("x", "phi_favor"))
    ctx = Context(torch.arange(x.shape[2]).expand(len(x), -1), run=True)
    weights = theirs @ theirs.mT  # [B H T T]
    total = weights.sum(-1)
    read = FullLinearAttention(favor(golden))(Queries(x, ctx.by_head), Keys(x, x, ctx.by_head), None, ctx).y
    assert read.lse is not None
    close(read.y, weights @ x / total[..., None])
    close(read.lse, total.log())
