"""Gradients of the fused executors where numbers are very large, very small, or many and narrow."""

import pytest
import torch

from kinformer import attend
from kinformer.core.bias import Bias
from kinformer.core.patterns.causal import Causal
from kinformer.nn.biases.relative import Relative
from kinformer.nn.biases.t5 import T5
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.random import Random


@pytest.mark.parametrize("of_y", [1.0, 1e-12, 0.0])
@pytest.mark.parametrize("size", [1e-18, 1e-10, 1.0, 1e19])
@pytest.mark.parametrize("pattern", [Causal(), Causal() & Band(9)], ids=["one call", "tiles"])
def test_gradients_through_y_and_lse_grow_with_their_loss(pattern: Causal, size: float, of_y: float) -> None:
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, 150, 8, generator=torch.Generator().manual_seed(0)))

    def gradients(impl: str) -> tuple[torch.Tensor, ...]:
        read = attend(q, k, v, pattern=pattern, impl=impl)
        assert read.lse is not None
        return torch.autograd.grad(((read.y.sin() * of_y).sum() + read.lse.sum()) * size, (q, k, v))

    largest = max(float(grad.norm()) for grad in gradients("reference"))
    for mine, other in zip(gradients("pieces"), gradients("reference"), strict=True):
        error = (mine.double() - other.double()).norm()
        assert float(error) <= 1e-5 * float(other.norm()) + 1e-15 * largest


@pytest.mark.parametrize("pattern", [Causal(), Causal() & Band(9)], ids=["one call", "tiles"])
def test_a_query_that_nobody_asks_gives_no_gradient_at_all(pattern: Causal) -> None:
    """Of a read whose lse is wanted of other queries: not the smallest number that there is, which is one."""
    q, k, v = torch.randn(3, 1, 2, 150, 8, generator=torch.Generator().manual_seed(0)).double()
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    read = attend(q, k, v, pattern=pattern, impl="pieces")
    assert read.lse is not None
    of_q, of_k, of_v = torch.autograd.grad((read.y + read.lse[..., None])[:, :, :75].sum(), (q, k, v))
    assert of_q[:, :, :75].all() and of_k[:, :, :75].any(-1).all() and of_v[:, :, :75].all()
    assert not any(x[:, :, 75:].any() for x in (of_q, of_k, of_v))


@pytest.mark.parametrize("impl", ["pieces", "reference"])
@pytest.mark.parametrize("bias", [lambda: Relative(8, 4), lambda: T5(2)], ids=["Relative", "T5"])
def test_tables_of_distances_learn_in_bfloat16(bias: type[Bias], impl: str) -> None:
    """Thousands of distances share a row; sums of so many in bfloat16 stand still."""
    g = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 1024, 8, generator=g).bfloat16()
    gy, part = torch.randn(1, 2, 1024, 8, generator=g).bfloat16() + 0.5, bias()
    values = [0.3 * torch.randn(x.shape, generator=g).bfloat16() for x in part.parameters()]

    def gradients(dtype: torch.dtype, impl: str) -> tuple[torch.Tensor, ...]:
        part.to(dtype)
        for parameter, value in zip(part.parameters(), values, strict=True):
            parameter.data.copy_(value)
        y = attend(*(x.to(dtype) for x in (q, k, v)), pattern=Causal(), bias=part, impl=impl).y
        return torch.autograd.grad((y * gy.to(dtype)).sum(), list(part.parameters()))

    for mine, exact in zip(gradients(torch.bfloat16, impl), gradients(torch.float64, "reference"), strict=True):
        assert float((mine.double() - exact).norm()) < 0.02 * float(exact.norm())


def test_tensors_without_numbers_are_read_where_no_plan_can_be_made() -> None:
    q, pos = torch.randn(1, 2, 300, 8, device="meta"), torch.arange(300, device="meta")[None, None]
    assert attend(q, q, q, pattern=Causal() & Band(8), q_pos=pos, k_pos=pos).y.shape == q.shape
    assert attend(q, q, q, pattern=Causal() & Random(2)).y.is_meta


@pytest.mark.parametrize("impl", ["auto", "pieces", "reference"])
def test_a_table_in_float32_beside_queries_in_bfloat16_is_read_in_bfloat16(impl: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 12, 8, generator=torch.Generator().manual_seed(0))
    bias = T5(2)
    output = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), pattern=Causal(), bias=bias, impl=impl)
    assert output.y.dtype == torch.bfloat16
    assert output.lse is not None and output.lse.dtype == torch.float32
    torch.testing.assert_close(
        output.y.float(), attend(q, k, v, pattern=Causal(), bias=bias, impl="reference").y, atol=0.03, rtol=0.03
    )
