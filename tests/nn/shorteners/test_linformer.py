"""Linformer's projections: the equation, rows that are shorter, padding, what is shared, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.heads import Keys
from kinformer.core.layer import Context
from kinformer.core.patterns.full import Full
from kinformer.core.projection import Projection
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.shared_qk import SharedQK
from kinformer.nn.shorteners.linformer import Linformer
from tests.unhooked import refusals, unhooked

pytestmark = pytest.mark.usefixtures("float64")
LENGTH, MIXTURES, G, K, V = 9, 3, 2, 4, 5
POS = torch.tensor([[2, 3, 4, 7, -1, -1], [0, 1, 2, 3, 4, 5], [-1] * 6])


def keys(pos: Tensor = POS) -> Keys:
    rows, n = pos.shape
    return Keys(torch.randn(rows, G, n, K), torch.randn(rows, G, n, V), pos[:, None])


@pytest.mark.parametrize(("heads", "tied"), [(None, False), (G, False), (None, True)])
def test_each_key_is_a_mixture_of_the_rows_own(heads: int | None, tied: bool) -> None:
    part, whole = Linformer(LENGTH, MIXTURES, heads=heads, tied=tied), keys()
    shortened = part(whole)
    first = part.along.k
    second = first if part.along.v is None else part.along.v
    assert (part.along.v is None) is tied and len(first) == (heads or 1)
    for matrix, short, other in ((first, shortened.k, whole.k), (second, shortened.v, whole.v)):
        for b, row in enumerate(POS.tolist()):
            real = sum(p >= 0 for p in row)
            for head, r in ((head, r) for head in range(G) for r in range(MIXTURES)):
                column = matrix[head if heads else 0, :, r]
                expected = sum((column[n] * other[b, head, n] for n in range(real)), torch.zeros(other.shape[3]))
                torch.testing.assert_close(short[b, head, r], expected)
    assert shortened.pos[:, 0].tolist() == [[max(row)] * MIXTURES for row in POS.tolist()]


def test_padding_changes_nothing_and_may_be_longer_than_the_matrices() -> None:
    part, row = Linformer(5, MIXTURES), keys(torch.arange(4)[None])
    pad = torch.nn.functional.pad
    padded = Keys(pad(row.k, (0, 0, 0, 4), value=7.0), pad(row.v, (0, 0, 0, 4)), pad(row.pos, (0, 4), value=-1))
    for ours, theirs in zip(part(padded)[:3], part(row)[:3], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert part(keys(POS[:, :0])).pos.tolist() == [[[-1] * MIXTURES]] * 3


def results(layer: Attention, x: Tensor, pos: Tensor) -> list[Tensor]:
    """What a layer reads at real tokens, and all gradients."""
    all_real = bool((pos >= 0).all())
    ctx = Context(pos, run=bool((pos[:, 1:] - pos[:, :-1] == 1).all()), full=all_real)
    y = torch.where((pos >= 0)[..., None], layer(x, None, ctx).y, 0.0)
    return [y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize(
    "pos", [torch.arange(40).expand(2, -1), torch.stack((torch.arange(40), torch.arange(40).flip(0) - 9))]
)
@pytest.mark.parametrize(("tied", "bias", "groups"), [(False, True, 2), (True, False, 2), (False, True, 1)])
def test_rows_may_be_mixed_before_they_are_projected(
    pos: Tensor, tied: bool, bias: bool, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = Shortened(Softmax(Full(), lse=False), Linformer(44, MIXTURES, tied=tied))
    layer = Attention(QKV(8, 2, key_heads=groups, bias=bias), mechanism)
    x = torch.randn(2, 40, 8, requires_grad=True)
    mixed, counted = Linformer.mix_before_projection, []
    monkeypatch.setattr(
        Linformer, "mix_before_projection", lambda *arguments: counted.append(mixed(*arguments)) or counted[-1]
    )
    early = results(layer, x, pos.clamp_min(-1))
    assert counted and all(mixture is not None for mixture in counted)
    monkeypatch.setattr(Linformer, "mix_before_projection", lambda *arguments: None)
    for ours, theirs in zip(early, results(layer, x, pos.clamp_min(-1)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("build", "few"),
    [
        # what turns by position is no mixture of what does not
        (lambda: QKV(8, 2, rotation=Rotary(4)), lambda: Linformer(44, 3)),
        (lambda: QKV(8, 2), lambda: Linformer(44, 3, heads=2)),
        # as many as there are tokens
        (lambda: QKV(8, 2), lambda: Linformer(44, 40)),
        (lambda: SharedQK(8, 2), lambda: Linformer(44, 3)),
    ],
)
def test_other_rows_are_projected_first(build: Callable[[], Projection], few: Callable[[], Linformer]) -> None:
    pos, projection, shorten = torch.arange(40)[None], build(), few()
    assert shorten.mix_before_projection(projection, torch.randn(1, 40, 8), pos[:, None], True) is None
    layer = Attention(projection, Shortened(Softmax(Full()), shorten))
    assert layer(torch.randn(1, 40, 8)).y.shape == (1, 40, 8)


def test_padding_of_no_numbers_stays_out_of_mixtures() -> None:
    layer, x = Attention(QKV(8, 2), Shortened(Softmax(Full()), Linformer(44, 3))), torch.randn(1, 40, 8)
    ctx = Context.of_sequence(x, torch.arange(40)[None] < 30)
    expected = layer(x, None, ctx).y[:, :30]
    x[:, 30:] = torch.nan
    torch.testing.assert_close(layer(x, None, ctx).y[:, :30], expected, rtol=0, atol=0)


def test_keys_are_of_the_type_of_queries_under_autocast() -> None:
    projection, shorten = QKV(8, 2).float(), Linformer(44, 3).float()
    with torch.autocast("cpu", torch.bfloat16):
        few = shorten.mix_before_projection(
            projection, torch.randn(1, 40, 8).float(), torch.arange(40)[None, None], True
        )
    assert few is not None and few.k.dtype == few.v.dtype == torch.bfloat16


class Adapted(nn.Module):
    """A linear layer and something beside it."""

    def __init__(self, inner: nn.Linear):
        super().__init__()
        self.inner, self.weight, self.bias = inner, inner.weight, inner.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


def test_what_stands_in_for_a_layer_or_looks_on_is_called() -> None:
    layer, x = Attention(QKV(8, 2), Shortened(Softmax(Full()), Linformer(44, 3))), torch.randn(1, 40, 8)
    before, calls = layer(x).y, list[int]()
    hook = layer.projection.qkv.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(layer(x).y, before)
    hook.remove()
    layer.projection.qkv = Adapted(layer.projection.qkv)
    assert calls == [1] and not torch.allclose(layer(x).y, before)


def test_a_layer_refuses_a_row_that_is_longer_than_its_matrices() -> None:
    layer = Attention(QKV(8, 2), Shortened(Softmax(Full()), Linformer(30, 3)))
    with pytest.raises(ValueError, match="more keys than the 30"):
        layer(torch.randn(1, 40, 8))


def refusal_messages() -> list[str]:
    def wide() -> Any:
        return Linformer(5, 2)(keys(torch.arange(6)[None]))

    return refusals(
        [
            lambda: Linformer(0),
            lambda: Linformer(4, 0),
            wide,
            lambda: Linformer(9, 2, heads=3)(keys()),
            lambda: Linformer(9, 2)(keys()._replace(extras={"gate": torch.zeros(3, G, 6, 1)})),
        ]
    )


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    expected = ("length=0", "k=0", "more keys than the 5", "made for 3 heads", "Use MeanPooled")
    for text, part in zip(unhooked(f"{__name__}:{refusal_messages.__name__}"), expected, strict=True):
        assert text.startswith("ValueError: ") and part in text and "\n" not in text
