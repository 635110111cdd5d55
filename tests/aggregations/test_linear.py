"""The sum identity of multi-head attention: concatenate and multiply, or multiply and sum."""

import pytest
import torch

from kinformer.aggregations.linear import Concat, Linear


@pytest.mark.parametrize("bias", [True, False])
def test_one_matrix_over_all_heads_is_a_sum_over_heads(bias: bool, float64: None) -> None:
    part, y = Linear(3, 4, 6, bias=bias), torch.randn(2, 3, 5, 4)
    rows = part.out.weight.T.unflatten(0, (3, 4))
    total = sum(y[:, h] @ rows[h] for h in range(3))
    assert torch.allclose(part(y), total + part.out.bias if bias else total, atol=1e-13)
    assert (part.out.bias is None) is not bias


def test_concat_puts_heads_side_by_side() -> None:
    y = torch.randn(2, 3, 5, 4)
    found = Concat()(y)
    assert found.shape == (2, 5, 12)
    assert all(torch.equal(found[..., 4 * h : 4 * h + 4], y[:, h]) for h in range(3))
