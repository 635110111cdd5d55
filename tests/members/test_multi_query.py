"""Multi-query attention: the lowest attention with one head of keys by hand, what it saves, and its positions."""

import pytest
import torch

import kinformer as kf
from tests.members.probes import Heads, cached_numbers, check_lowest, count, distances, softmax

pytestmark = pytest.mark.usefixtures("float64")

SIZES = {"d": 16, "depth": 2, "heads": 4, "length": 32, "vocab": 11}


def by_hand(heads: Heads, h: int) -> torch.Tensor:
    """softmax(q_h k^T / sqrt(K)) v over earlier tokens: every head of queries reads the same keys and values."""
    scores = heads.q[:, h] @ heads.k[:, 0].T / 2
    return softmax(scores.masked_fill(distances() < 0, -torch.inf)) @ heads.v[:, 0]


def test_all_heads_read_one_head_of_keys_and_values() -> None:
    check_lowest(kf.multi_query(**SIZES), by_hand)


def test_a_second_head_of_keys_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check_lowest(kf.multi_query(**SIZES, key_heads=2), by_hand)


def test_multi_query_keeps_one_head_of_keys_and_is_as_large_as_its_twin() -> None:
    """The paper widens the feed-forward by what the keys and values save; biases make the only difference."""
    plain, paper, grouped = kf.gpt(**SIZES), kf.multi_query(**SIZES), kf.multi_query(**SIZES, key_heads=2)
    assert (cached_numbers(paper) * 4, cached_numbers(grouped) * 2) == (cached_numbers(plain), cached_numbers(plain))
    matrices = [sum(w.numel() for w in m.body.parameters() if w.dim() == 2) for m in (plain, paper, grouped)]
    assert matrices[0] == matrices[1] == matrices[2]
    assert count(kf.multi_query(**SIZES, hidden=64)) < count(plain)
    assert count(kf.multi_query(**SIZES, key_heads=4)) == count(plain)


def test_multi_querys_head_dim_is_free() -> None:
    projection = kf.multi_query(**SIZES, head_dim=6).body.layers[0].layers[0].projection
    assert (projection.k_dim, projection.key_heads, projection.heads) == (6, 1, 4)


def test_multi_query_knows_order_as_told() -> None:
    tokens = torch.randint(0, 11, (1, 8))
    turned = torch.cat([tokens[:, :7].flip(1), tokens[:, 7:]], 1)
    for position in ("learned", "sinusoidal", "rotary", "alibi", "none"):
        sizes = {key: value for key, value in SIZES.items() if key != "length" or position == "learned"}
        model = kf.multi_query(**{**sizes, "depth": 1}, position=position).eval()
        change = (model.logits(tokens).y - model.logits(turned).y)[0, -1].abs().max()
        assert bool(change > 1e-6) is (position != "none")
    narrow = kf.multi_query(**{**SIZES, "depth": 1}, pattern="Causal() & Band(2)").eval()
    other = torch.cat([(tokens[:, :1] + 1) % 11, tokens[:, 1:]], 1)
    assert torch.equal(narrow.logits(tokens).y[0, 3:], narrow.logits(other).y[0, 3:])
