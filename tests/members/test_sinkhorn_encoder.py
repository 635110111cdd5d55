"""Sinkhorn encoder: sorted blocks of the lowest attention by hand, another temperature, SortCut, and what is read."""

from typing import Any

import pytest
import torch

import kinformer as kf
from tests.members.probes import LENGTH, Heads, check_lowest, receptive_field, softmax

pytestmark = pytest.mark.usefixtures("float64")

BLOCK = 3
SMALL: dict[str, Any] = {"d": 8, "heads": 2, "depth": 1, "block": BLOCK, "length": 12, "vocab": 11}


def sort_of(heads: Heads, h: int) -> torch.Tensor:
    """S: exp(R / 0.75), rows and columns divided by their sums 7 times; R = relu(relu(block sums) W + b)."""
    net = heads.layer.mechanism.net
    sums = heads.layer.key_side(heads.x).view(LENGTH, 2, net.width)[:, h].unflatten(0, (-1, BLOCK)).sum(1)
    s = ((sums.relu() @ net.weight + net.bias).relu()[:, : LENGTH // BLOCK] / 0.75).exp()
    for _ in range(7):
        s = s / s.sum(1, keepdim=True)
        s = s / s.sum(0, keepdim=True)
    return s


def by_hand(heads: Heads, h: int, cut: int | None = None) -> torch.Tensor:
    """A token reads its own block and the mixture that S puts beside it, or the first `cut` sorted blocks."""
    q, k, v, s = heads.q[:, h], heads.k[:, h], heads.v[:, h], sort_of(heads, h)
    sorted_k, sorted_v = (torch.einsum("nm,mbd->nbd", s, x.unflatten(0, (-1, BLOCK))) for x in (k, v))
    rows = []
    for i in range(LENGTH):
        n = i // BLOCK
        if cut:
            keys, values = sorted_k[:cut].flatten(0, 1), sorted_v[:cut].flatten(0, 1)
        else:
            own = slice(n * BLOCK, (n + 1) * BLOCK)
            keys, values = torch.cat([k[own], sorted_k[n]]), torch.cat([v[own], sorted_v[n]])
        rows.append(softmax(keys @ q[i] / 2) @ values)
    return torch.stack(rows)


def test_a_block_reads_itself_and_a_mixture_of_sorted_blocks() -> None:
    check_lowest(kf.sinkhorn_encoder(**SMALL), by_hand)


def test_with_a_cut_all_tokens_read_the_first_sorted_blocks() -> None:
    check_lowest(kf.sinkhorn_encoder(**SMALL, cut=2), lambda heads, h: by_hand(heads, h, 2))


@pytest.mark.parametrize("fault", [{"temperature": 0.8}, {"iterations": 1}, {"pool": "mean"}, {"mixture": True}])
def test_another_sort_is_noticed(fault: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check_lowest(kf.sinkhorn_encoder(**SMALL, **fault), by_hand)


def test_a_sort_gives_every_block_a_place_and_every_token_reads_both_ways() -> None:
    """Rows and columns of S sum to 1 after enough iterations: a soft permutation."""
    model = kf.sinkhorn_encoder(**SMALL, iterations=200).eval()
    layer = model.body.layers[0].layers[0]
    sums: list[torch.Tensor] = []
    sorting = type(layer.mechanism).sorting
    layer.mechanism.sorting = lambda *inputs: sums.append(sorting(layer.mechanism, *inputs)) or sums[-1]
    model.logits(torch.randint(0, 11, (1, 12)))
    for dim in (-1, -2):
        torch.testing.assert_close(sums[0].sum(dim)[..., :4], torch.ones(1, 2, 4))
    assert receptive_field(kf.sinkhorn_encoder(**SMALL)).all()
