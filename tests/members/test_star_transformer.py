"""Star-Transformer: its rounds by hand, an open ring, what a token reads without the relay, and its size."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.layer import Context
from tests.members.probes import LENGTH, count, first_part, softmax

pytestmark = pytest.mark.usefixtures("float64")

D, HEADS = 8, 2
SMALL: dict[str, Any] = {"d": D, "heads": HEADS, "depth": 2, "length": 20, "vocab": 11}


def attended(part: Any, query: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """MHA of one vector over a few."""
    q, k, v = (
        F.linear(x, *part.projection.matrix(name)).view(-1, HEADS, D // HEADS).transpose(0, 1)
        for name, x in zip("qkv", (query[None], source, source), strict=True)
    )
    y = softmax(q @ k.mT / (D / HEADS) ** 0.5) @ v
    return part.aggregation(y[None], torch.zeros(1, 1, dtype=torch.long))[0, 0]


def rounds_by_hand(body: Any, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """h_i = LN(ReLU(MHA(h_i, [h_i-1; h_i; h_i+1; e_i; s]))), then s = LN(ReLU(MHA(s, [s; h_1 .. h_n]))), s = mean e."""
    n, h, s = len(e), e, e.mean(0)
    for part in body.rounds:
        around = [torch.stack([h[i - 1], h[i], h[(i + 1) % n], e[i], s]) for i in range(n)]
        h = torch.stack([part.ring_norm(attended(part.ring, h[i], around[i]).relu()) for i in range(n)])
        s = part.relay_norm(attended(part.relay, s, torch.cat([s[None], h])).relu())
    return h, s


def check(model: kf.MLM) -> None:
    body, x, y = first_part(model, kf.StarRounds)
    torch.testing.assert_close(y, rounds_by_hand(body, x)[0])


def test_tokens_on_a_ring_and_a_relay_read_each_other_in_rounds() -> None:
    check(kf.star_transformer(**SMALL))


def test_an_open_ring_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token is its own neighbour in place of the first."""
    around = kf.StarRounds.make_ring
    monkeypatch.setattr(
        kf.StarRounds,
        "make_ring",
        lambda self, ctx: (ring := around(self, ctx))._replace(after=ring.after.clamp_min(1)),
    )
    with pytest.raises(AssertionError):
        check(kf.star_transformer(**SMALL))


def test_without_the_relay_a_token_reads_one_neighbour_more_on_each_side_a_round() -> None:
    """The relay's part of the gradient is cut: what is left comes around the ring."""
    for depth in (1, 2, 3):
        model = kf.star_transformer(**{**SMALL, "depth": depth}).eval()
        e = torch.randn(1, LENGTH, D, requires_grad=True)
        body, ctx = model.body, Context.of_sequence(e)
        ring = body.make_ring(ctx)
        h, s = e, body.mean(e, ctx).detach()
        for part in body.rounds:
            h = part.satellites(h, e, s, ring)
        flow = [torch.autograd.grad(row.sin().sum(), e, retain_graph=True)[0][0].abs().amax(-1) > 0 for row in h[0]]
        at = torch.arange(LENGTH)
        away = (at[:, None] - at).abs()
        assert torch.equal(torch.stack(flow), torch.minimum(away, LENGTH - away) <= depth)


def test_a_round_has_two_attentions_and_two_norms_and_no_feed_forward() -> None:
    sizes = [count(kf.star_transformer(**{**SMALL, "depth": depth})) for depth in (1, 2)]
    assert sizes[1] - sizes[0] == 2 * 4 * (D * D + D) + 2 * 2 * D
