"""The sum identity of multi-head attention: concatenate and multiply, or multiply and sum."""

import pytest
import torch

from kinformer.nn.aggregations.out_projection import Concat, OutProjection
from tests.unhooked import refusals, unhooked

POS = torch.arange(5).expand(2, 5)


@pytest.mark.parametrize("bias", [True, False])
def test_one_matrix_over_all_heads_is_a_sum_over_heads(bias: bool, float64: None) -> None:
    part, y = OutProjection(3, 4, 6, bias=bias), torch.randn(2, 3, 5, 4)
    rows = part.linear.weight.T.unflatten(0, (3, 4))
    total = sum(y[:, h] @ rows[h] for h in range(3))
    assert torch.allclose(part(y, POS), total + part.linear.bias if bias else total, atol=1e-13)
    assert (part.linear.bias is None) is not bias


def test_concat_puts_heads_side_by_side() -> None:
    y = torch.randn(2, 3, 5, 4)
    actual = Concat()(y, POS)
    assert actual.shape == (2, 5, 12)
    assert all(torch.equal(actual[..., 4 * h : 4 * h + 4], y[:, h]) for h in range(3))


def refusal_messages() -> list[str]:
    return refusals([lambda: OutProjection(0, 4, 6), lambda: OutProjection(2, 0, 6), lambda: OutProjection(2, 4, 0)])


def test_refuses_sizes_that_are_none() -> None:
    for text, name in zip(unhooked(f"{__name__}:{refusal_messages.__name__}"), ("heads", "v_dim", "d"), strict=True):
        assert text == f"ValueError: {name}=0: give a whole number of at least 1"
