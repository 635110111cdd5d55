"""MeanPooled, MaxPooled and ConvShortener: each group by its equation, its position, padding and refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.heads import Keys
from kinformer.nn.shorteners.conv_shortener import ConvShortener
from kinformer.nn.shorteners.max_pooled import MaxPooled
from kinformer.nn.shorteners.mean_pooled import MeanPooled
from tests.unhooked import refusals, unhooked

pytestmark = pytest.mark.usefixtures("float64")
POS = torch.tensor([[2, 3, 4, 7, 9, 11, -1], [0, 1, 2, 3, 4, 5, 6], [-1] * 7])  # padding last, as Shortened hands it on
G, K, V = 2, 4, 5


def keys(pos: Tensor = POS, extras: bool = True) -> Keys:
    rows, n = pos.shape
    k, v, side = torch.randn(rows, G, n, K), torch.randn(rows, G, n, V), torch.randn(rows, G, n, 1)
    labels = {"segment": torch.zeros(rows, n).long()}
    tags = {"bucket": torch.zeros(rows, G, n, 1).long()}
    return Keys(k, v, pos[:, None], {"gate": side} if extras else {}, labels, tags, own=False)


def groups(row: list[int], size: int, align: str) -> list[list[int]]:
    """Columns of each group of real keys."""
    real = [at for at, p in enumerate(row) if p >= 0]
    first = len(real) % size if align == "last" else 0
    cut = [real[:first]] if first else []
    return cut + [real[n : n + size] for n in range(first, len(real), size)]


def mean(part: nn.Module, name: str, head: int, x: Tensor, places: list[int]) -> Tensor:
    return x.mean(0)


def largest(part: nn.Module, name: str, head: int, x: Tensor, places: list[int]) -> Tensor:
    return torch.stack([max(numbers) for numbers in x.T])


def convolution(part: Any, name: str, head: int, x: Tensor, places: list[int]) -> Tensor:
    """b + sum over the group of W_a x_a, the place a counted in the whole group."""

    def of(matrices: Any) -> Tensor:
        weight = matrices.k if name == "k" or matrices.v is None else matrices.v
        return weight[head if len(weight) > 1 else 0]

    return sum((row @ of(part.weight)[a] for row, a in zip(x, places, strict=True)), of(part.bias))


CASES = [
    (lambda size, align: MeanPooled(size, align), mean, True),
    (lambda size, align: MaxPooled(size, align), largest, True),
    (lambda size, align: ConvShortener(size, K, V, heads=G, align=align), convolution, False),
    (lambda size, align: ConvShortener(size, K, V, align=align), convolution, False),
]


@pytest.mark.parametrize("align", ["first", "last"])
@pytest.mark.parametrize("size", [1, 3, 20])
@pytest.mark.parametrize(("make", "by_hand", "extras"), CASES, ids=["mean", "max", "by head", "shared"])
def test_each_key_is_made_of_those_that_follow_one_another(
    make: Any, by_hand: Any, extras: bool, size: int, align: str
) -> None:
    part, whole = make(size, align), keys(extras=extras)
    shortened = part(whole)
    assert (
        shortened.k.shape[2] == -(-7 // size) and not shortened.own and shortened.labels == {} and shortened.tags == {}
    )
    pairs = [("k", shortened.k, whole.k), ("v", shortened.v, whole.v)]
    pairs += [(name, shortened.extras[name], side) for name, side in whole.extras.items()]
    for b, row in enumerate(POS.tolist()):
        groups_of = groups(row, size, align)
        pos = shortened.pos[b, 0].tolist()
        stands = [row[group[-1]] + (size - len(group)) * (align == "first") for group in groups_of]
        at = pos.index(stands[0]) if groups_of else 0  # counted from the last, what is no group stands first
        assert pos == [-1] * at + stands + [-1] * (len(pos) - at - len(groups_of))
        for n, group in enumerate(groups_of):
            places = list(range(size))[: len(group)] if align == "first" else list(range(size))[-len(group) :]
            for name, short, other in pairs:
                for head in range(short.shape[1]):
                    expected = by_hand(part, name, head, other[b, head, group], places)
                    torch.testing.assert_close(short[b, head, at + n], expected)
    assert all(short.isfinite().all() for _, short, _ in pairs)


@pytest.mark.parametrize("make", [lambda: MeanPooled(3), lambda: MaxPooled(3), lambda: ConvShortener(3, K, V)])
def test_padding_gives_nothing_and_gets_no_gradient(make: Any) -> None:
    k = torch.randn(3, G, 7, K, requires_grad=True)
    make()(keys(extras=False)._replace(k=k)).k.sum().backward()
    assert k.grad is not None and k.grad.isfinite().all()
    assert k.grad[0, :, 6].count_nonzero() == 0 and k.grad[2].count_nonzero() == 0
    assert make()(keys(POS[:, :0], extras=False)).k.shape == (3, G, 0, K)


def test_tied_keys_and_values_share_their_kernels_and_no_bias_is_none() -> None:
    part = ConvShortener(2, K, tied=True, bias=False)
    assert [weight.shape for weight in part.parameters()] == [(1, 2, K, K)]
    same = keys(extras=False)
    shortened = part(same._replace(v=same.k))
    torch.testing.assert_close(shortened.k, shortened.v)


def refusal_messages() -> list[str]:
    narrow = keys(extras=False)
    return refusals(
        [
            lambda: MeanPooled(0),
            lambda: MeanPooled(2, "middle"),
            lambda: ConvShortener(2, 4, 5, tied=True),
            lambda: ConvShortener(2, K, V, heads=3)(narrow),
            lambda: ConvShortener(2, K)(narrow),
            lambda: ConvShortener(2, K, V)(keys()),
        ]
    )


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    expected = (
        "size=0",
        "align='middle'",
        "tied=True needs",
        "made for 3 heads",
        "v of width 4",
        "only keys and values",
    )
    for text, part in zip(unhooked(f"{__name__}:{refusal_messages.__name__}"), expected, strict=True):
        assert text.startswith("ValueError: ") and part in text and "\n" not in text
