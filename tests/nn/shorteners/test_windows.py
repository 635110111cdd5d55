"""Windows of keys: means, maxima and kernels by loops, at the ends of rows too, wherever keys lie."""

import pytest
import torch

from kinformer.core.heads import Keys
from kinformer.nn.shorteners.windows import DynamicWindows, MaxWindows, MeanWindows

pytestmark = pytest.mark.usefixtures("float64")
POS = torch.tensor([[6, -1, 7, 4, 5, 3, 8], [0, 1, 2, 3, 4, 5, 6], [-1] * 7])
H, K, V = 2, 4, 3


def keys():
    side = torch.randn(3, H, 7, 1)
    return Keys(torch.randn(3, H, 7, K), torch.randn(3, H, 7, V), POS[:, None], {"gate": side}, own=False)


def pool_of(windows_part, name, x, span, last):
    """What a window of places, some of them beyond the row, makes of x [n N]."""
    places = [t for t in span if 0 <= t <= last]
    if isinstance(windows_part, MeanWindows) or name == "gate":
        return sum(x[t] for t in places) / len(places)
    if isinstance(windows_part, MaxWindows):
        return torch.tensor([max(float(x[t, n]) for t in places) for n in range(x.shape[1])])
    middle = min(max(span[windows_part.size // 2], 0), last)
    logits = [x[middle] @ weight for weight in x.weights]
    total = sum(logits[t - span[0]].exp() for t in places)
    return sum(logits[t - span[0]].exp() / total * x[t] for t in places)


MADE = {"mean": MeanWindows, "max": MaxWindows, "dynamic": lambda size: DynamicWindows(size, H, K, V)}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("kind", MADE)
@torch.no_grad()
def test_each_window_is_of_the_keys_that_are_there(kind: str, size: int) -> None:
    shortener, whole = MADE[kind](size), keys()
    for weight in shortener.parameters():
        torch.nn.init.normal_(weight)
    if kind == "dynamic":  # it makes kernels for keys and values and nothing else
        whole = whole._replace(extras={})
    shortened = shortener(whole)
    assert (
        shortened.k.shape[2] == 7 + size - 1 and not shortened.own and shortened.labels == {} and shortened.tags == {}
    )
    for b in range(3):
        order = [at for _, at in sorted((p, at) for at, p in enumerate(POS[b].tolist()) if p >= 0)]
        first, last = (int(POS[b, order[0]]), len(order) - 1) if order else (0, -1)
        begins = [*range(1 - size, last + 1)] if order else []
        ends = [first + s + size - 1 for s in begins]
        assert shortened.pos[b, 0].tolist() == ends + [-1] * (7 + size - 1 - len(ends))
        for n, s in enumerate(begins):
            for name, short, other in (("k", shortened.k, whole.k), ("v", shortened.v, whole.v)):
                for h in range(H):
                    x = Row(other[b, h][order], getattr(shortener, name)[h].T if kind == "dynamic" else ())
                    torch.testing.assert_close(short[b, h, n], pool_of(shortener, name, x, range(s, s + size), last))
    assert all(x.isfinite().all() for x in (shortened.k, shortened.v))


class Row:
    """The tokens of a row, and the weights that make its kernels."""

    def __init__(self, x, weights):
        self.x, self.weights, self.shape = x, weights, x.shape

    def __getitem__(self, at):
        return self.x[at]


@pytest.mark.parametrize("kind", MADE)
def test_padding_gives_nothing_and_gets_no_gradient(kind: str) -> None:
    whole, shortener = keys(), MADE[kind](3)
    k, v = whole.k.requires_grad_(), whole.v.requires_grad_()
    shortened = shortener(whole._replace(extras={}))
    (shortened.k.square().sum() + shortened.v.square().sum()).backward()
    for tensor in (k, v):
        reached = tensor.grad.abs().sum((1, 3)) > 0
        assert (reached == (POS >= 0)).all()


def test_a_dynamic_kernel_begins_as_the_mean_and_chooses_by_its_middle() -> None:
    whole = keys()._replace(extras={})
    shortener, mean = DynamicWindows(3, H, K, V), MeanWindows(3)(whole)
    torch.testing.assert_close(shortener(whole).k, mean.k)
    with torch.no_grad():
        shortener.k[0, 0] = torch.tensor([0.0, 100.0, 0.0])  # where its first number is large, the middle itself
    x = whole.k.clone()
    x[1, 0, :, 0] = 5.0
    short_k = shortener(whole._replace(k=x)).k
    torch.testing.assert_close(short_k[1, 0, 2:7], x[1, 0, 1:6], atol=1e-12, rtol=0)
    torch.testing.assert_close(short_k[1, 1], mean.k[1, 1])


def test_what_does_not_fit_is_refused() -> None:
    whole = keys()
    with pytest.raises(ValueError, match=r"MeanWindows got positions by head"):
        MeanWindows(2)(whole._replace(pos=POS[:, None].expand(-1, H, -1)))
    with pytest.raises(ValueError, match="'k' were made for 1 heads of width 4, but got 2 of width 4"):
        DynamicWindows(2, 1, K, V)(whole._replace(extras={}))
    with pytest.raises(ValueError, match="'gate' were made for"):
        DynamicWindows(2, H, K, V)(whole)
    with pytest.raises(ValueError, match="size=0"):
        MaxWindows(0)
