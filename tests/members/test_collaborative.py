"""Collaborative heads: scores of shared columns by hand, a scale of a head in place of the width, and the cache."""

import pytest
import torch

import kinformer as kf
from tests.members.probes import Heads, cached_numbers, check_lowest, count, distances, softmax

pytestmark = pytest.mark.usefixtures("float64")

SIZES = {"d": 16, "depth": 2, "heads": 4, "length": 32, "vocab": 11}


def by_hand(heads: Heads, h: int) -> torch.Tensor:
    """score_ij = ((x_i W_q) diag(m_h) (x_j W_k)^T + x_j w_h) / sqrt(D), D shared columns; values by head."""
    projection, x = heads.layer.projection, heads.x
    columns = len(projection.q.weight)
    of_queries, of_keys = x @ projection.q.weight.T, x @ projection.k.weight[:columns].T
    content = x @ projection.k.weight[columns + h]
    scores = (of_queries * projection.mixing[h] @ of_keys.T + content) / columns**0.5
    v = projection.v(x).view(len(x), -1, projection.v_dim)[:, h]
    return softmax(scores.masked_fill(distances() < 0, -torch.inf)) @ v


@pytest.mark.parametrize("shared", [None, 6])
def test_heads_weigh_shared_columns_in_their_own_ways(shared: int | None) -> None:
    check_lowest(kf.collaborative(**SIZES, shared=shared), by_hand)


def test_another_scale_is_noticed() -> None:
    """The authors' code divides by the root of the columns of a head, D / heads."""
    with pytest.raises(AssertionError):
        check_lowest(kf.collaborative(**SIZES, scale="head"), by_hand)


def test_collaborative_heads_keep_a_quarter_of_the_keys() -> None:
    small, plain = kf.collaborative(**SIZES), kf.gpt(**SIZES)
    assert count(small) < count(plain)
    assert cached_numbers(plain) == 2 * (16 + 16) and cached_numbers(small) == 2 * (
        4 + 4 + 16
    )  # shared columns, a score a head, values
    assert cached_numbers(kf.collaborative(**SIZES, shared=8, content=False)) == 2 * (8 + 16)
