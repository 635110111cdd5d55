"""Pooled: means of keys that follow one another, wherever they lie."""

import pytest
import torch

from kinformer.core.heads import Keys
from kinformer.shorteners.pooled import Pooled
from tests.unhooked import refusals, unhooked

pytestmark = pytest.mark.usefixtures("float64")
POS = torch.tensor([[4, -1, 7, 2, 9, 3, 11], [0, 1, 2, 3, 4, 5, 6], [-1] * 7])


def keys(pos=POS):
    n = pos.shape[1]
    k, v, side = torch.randn(3, 2, n, 4), torch.randn(3, 1, n, 5), torch.randn(3, 2, n, 1)
    labels = {"segment": torch.zeros(3, n).long()}
    return Keys(k, v, pos[:, None], {"gate": side}, labels, {"bucket": torch.zeros(3, 2, n, 1).long()}, own=False)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
def test_each_mean_is_of_keys_that_follow_one_another(size):
    whole = keys()
    found = Pooled(size)(whole)
    assert found.k.shape[2] == -(-7 // size) and not found.own and found.labels == {} and found.tags == {}
    for b in range(3):
        order = sorted((p, at) for at, p in enumerate(POS[b].tolist()) if p >= 0)
        groups = [order[n : n + size] for n in range(0, len(order), size)]
        pos = found.pos[b, 0].tolist()
        ends = [group[-1][0] + size - len(group) for group in groups]  # of the last, where it would be whole
        assert pos == ends + [-1] * (len(pos) - len(groups))
        for n, group in enumerate(groups):
            at = [place for _, place in group]
            for one, other in ((found.k, whole.k), (found.v, whole.v), (found.sides["gate"], whole.sides["gate"])):
                assert torch.allclose(one[b, :, n], other[b][:, at].mean(1), atol=1e-14)
    assert all(x.isfinite().all() for x in (found.k, found.v))


def test_padding_gives_nothing_and_gets_no_gradient():
    k = torch.randn(3, 2, 7, 4, requires_grad=True)
    Pooled(3)(keys()._replace(k=k)).k.sum().backward()
    assert k.grad[0, :, 1].count_nonzero() == 0 and k.grad[2].count_nonzero() == 0 and k.grad.isfinite().all()


def test_no_keys_are_no_means():
    assert Pooled(3)(keys(POS[:, :0])).k.shape == (3, 2, 0, 4)


def test_positions_by_head_are_refused():
    with pytest.raises(ValueError, match=r"got positions by head \[3, 2, 7\]"):
        Pooled(2)(keys()._replace(pos=POS[:, None].expand(3, 2, 7)))


def said():
    return refusals([lambda: Pooled(0), lambda: Pooled(2.5)])


def test_its_size_is_checked():
    for text, came in zip(unhooked(f"{__name__}:{said.__name__}"), ("0", "2.5"), strict=True):
        assert text == f"ValueError: size={came}: give a whole number of at least 1"
