"""Second derivatives through Functions with a backward of their own: right, or refused by whatever call."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.nn.attention import Attention, attend
from kinformer.nn.maps.elu import ELU
from kinformer.nn.maps.favor import shifted_exp
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.mechanisms.nystrom import Nystrom
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("impl", ["pieces", "masked"])
def test_a_fast_read_differentiates_once_and_says_so(impl: str) -> None:
    q, k, v = (torch.randn(1, 1, 9, 4, requires_grad=True) for _ in range(3))
    y = attend(q, k, v, pattern=Causal() & Band(3), impl=impl).y
    (first,) = torch.autograd.grad(y.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        torch.autograd.grad(first.square().sum(), q)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.square().sum().backward()


def plain_elu(x: Tensor) -> Tensor:
    above = x.relu()
    return (x - above - x.detach().amax(-1).clamp_max(0)[..., None]).exp() + above


def plain_favor(x: Tensor) -> Tensor:
    shift, floor = x[..., 0], x[..., 1]
    return (x + shift[..., None]).exp() + floor[..., None]


@pytest.mark.parametrize(
    ("fast", "plain"),
    [(lambda x: ELU()(x, True)[0], plain_elu), (lambda x: shifted_exp(x, x[..., 0], x[..., 1]), plain_favor)],
    ids=["elu", "favor"],
)
def test_features_differentiate_twice(fast: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor]) -> None:
    x, direction = torch.randn(1, 2, 3, 4, requires_grad=True), torch.randn(1, 2, 3, 4)
    actual, want = (second(form, x, direction) for form in (fast, plain))
    torch.testing.assert_close(actual, want)


def second(features: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> Tensor:
    (first,) = torch.autograd.grad(features(x).pow(3).sum(), x, create_graph=True)
    return torch.autograd.grad(first, x, direction)[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize("mechanism", [Softmax(Causal(), lse=False), FullLinearAttention(ELU()), Nystrom(2)])
def test_layers_are_derived_forward_and_in_batches_of_directions(mechanism: Mechanism) -> None:
    layer, x, direction = Attention(QKV(8, 2), mechanism), torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    _, forward = torch.func.jvp(lambda x: layer(x).y, (x,), (direction,))
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x).y, x, vectorize=True)
    torch.testing.assert_close(forward, torch.einsum("abcdef,def->abc", jacobian, direction))
