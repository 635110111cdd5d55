"""ReLU and GeneralisedKernel: the maps by loops, and what stays finite."""

import inspect

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.maps.generalised import FUNCTIONS, GeneralisedKernel
from kinformer.nn.maps.relu import ReLU
from kinformer.nn.mechanisms.linear import LinearAttention

pytestmark = pytest.mark.usefixtures("float64")


def test_relu_against_a_loop():
    x = torch.randn(1, 2, 3, 4)
    phi, left = ReLU(eps=0.25)(x, False)
    assert phi.flatten().tolist() == [max(n, 0.0) + 0.25 for n in x.flatten().tolist()] and left.count_nonzero() == 0


@pytest.mark.parametrize("f", FUNCTIONS)
def test_generalised_kernels_against_a_loop(f):
    map, x = GeneralisedKernel(4, 6, f=f, eps=0.25), torch.randn(1, 2, 3, 4)
    x[0, 0] *= torch.tensor([[8.0], [1.0], [0.0]])
    phi, left = map(x, True)
    assert phi.shape[-1] == map.features(4) == 6 and (phi > 0).all()
    for h, t in torch.cartesian_prod(torch.arange(2), torch.arange(3)).tolist():
        u = torch.stack([w.dot(x[0, h, t] / 4**0.25) for w in map.directions.double()])
        expected = {
            "relu": u.clamp_min(0),
            "sigmoid": 1 / (1 + (-u).exp()),
            "abs": torch.maximum(u, -u),
            "softplus": (1 + u.exp()).log(),
            "exp": u.exp(),
        }[f] + 0.25
        torch.testing.assert_close(phi[0, h, t] * left[0, h, t].exp(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("f", FUNCTIONS)
def test_large_vectors_stay_finite_in_single_precision(f):
    q, k, v = 40 * torch.randn(3, 1, 2, 7, 64).float()
    ctx = Context(torch.arange(7)[None], run=True)
    read = LinearAttention(GeneralisedKernel(64, 32, f=f))(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx)
    assert read.y.y.isfinite().all() and read.y.lse.isfinite().all()


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"^eps=0\.0"):
        ReLU(eps=0.0)
    with pytest.raises(ValueError, match=r"^eps=0\.0 must be positive and finite"):
        GeneralisedKernel(4, eps=0.0)
    with pytest.raises(ValueError, match="f='cos' is not known; choose 'relu' or"):
        inspect.unwrap(GeneralisedKernel.__init__)(GeneralisedKernel.__new__(GeneralisedKernel), 4, f="cos")
