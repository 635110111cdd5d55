"""ALiBi against its equation, and its slopes against the paper's own words."""

import math

import pytest
import torch

from kinformer.attend import attend
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.biases.alibi import ALiBi, slopes


def test_slopes_are_a_geometric_sequence_for_powers_of_two() -> None:
    for heads in (1, 2, 4, 8, 16, 32):
        ratio = 2 ** (-8 / heads)
        assert slopes(heads) == pytest.approx([ratio**n for n in range(1, heads + 1)], rel=1e-14)


def test_slopes_of_other_numbers_of_heads_fill_the_gaps() -> None:
    """Those of the power of two below, then those of the power above that lie between them, every other one."""
    for heads in range(1, 70):
        below = 2 ** int(math.log2(heads))
        above = slopes(2 * below)
        assert slopes(heads) == slopes(below) + above[0::2][: heads - below]
        assert len(set(slopes(heads))) == heads


@pytest.mark.parametrize("pattern", [Causal(), Full()])
@pytest.mark.parametrize("heads", [2, 3])
def test_equals_a_loop_over_the_equation(pattern: Pattern, heads: int, float64: None) -> None:
    q, k, v = torch.randn(2, heads, 5, 4), torch.randn(2, heads, 7, 4), torch.randn(2, heads, 7, 3)
    q_pos = torch.tensor([[[4, 5, 6, 7, 8]], [[2, 3, 4, 5, -1]]])
    k_pos = torch.tensor([[[8, 7, 6, 5, 4, 3, 2]], [[-1, 0, 1, 2, 3, 4, 5]]])
    read = attend(q, k, v, q_pos=q_pos, k_pos=k_pos, pattern=pattern, bias=ALiBi(heads))
    for b in range(2):
        for h in range(heads):
            for i in range(5):
                at = int(q_pos[b, 0, i])
                total, y = 0.0, torch.zeros(3)
                for j in range(7):
                    key = int(k_pos[b, 0, j])
                    if at < 0 or key < 0 or (pattern == Causal() and key > at):
                        continue
                    weight = math.exp(q[b, h, i] @ k[b, h, j] / math.sqrt(4) - slopes(heads)[h] * abs(at - key))
                    total, y = total + weight, y + weight * v[b, h, j]
                assert torch.allclose(read.y[b, h, i], y / total if total else y, atol=1e-12)


def test_only_distance_counts(float64: None) -> None:
    q, k, v = torch.randn(3, 1, 4, 9, 4)
    pos = torch.arange(9)[None, None]
    near, far = (
        attend(q[None, 0], k[None, 0], v[None, 0], q_pos=p, k_pos=p, pattern=Causal(), bias=ALiBi(4)).y
        for p in (pos, pos + 100000)
    )
    assert torch.allclose(near, far, atol=1e-12)


def test_another_number_of_heads_is_an_error() -> None:
    q = torch.zeros(1, 4, 2, 4)
    pos = torch.arange(2)[None, None]
    with pytest.raises(ValueError, match=r"got ALiBi\(8\) in a layer of 4 heads"):
        attend(q, q, q, q_pos=pos, k_pos=pos, pattern=Causal(), bias=ALiBi(8))
