"""Localness against its equation in three forms of window, what its range follows, and what starts it."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.attend import attend
from kinformer.core.bias import Plus
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.scores.product import Product
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.biases.localness import FixedLocalness, LayerLocalness, Localness, QueryLocalness
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.projections.qkv import QKV
from tests.nn.biases.requests import make_request

pytestmark = pytest.mark.usefixtures("float64")
HEADS, WIDTH = 4, 3
KINDS = [QueryLocalness, LayerLocalness, lambda *sizes: FixedLocalness(*sizes, 2.5)]
# rows of 7 and of 5 tokens, padded on the left and on the right
POS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, 0, 1, 2, 3, 4, -1]])
# the first and the last position that query i of a row of n tokens has to read
RANGES = {
    Full(): lambda i, n: (0, n - 1),
    Causal(): lambda i, n: (0, i),
    Causal() & Strided(2): lambda i, n: (0, i),
    Causal() & Band(2): lambda i, n: (max(0, i - 2), i),
    Band(1, 3): lambda i, n: (max(0, i - 1), min(n - 1, i + 3)),
}


def sigmoid(x: Tensor) -> float:
    return 1 / (1 + math.exp(-float(x)))


@torch.no_grad()
def naive(bias: Localness, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
    """The paper's equations, a pair at a time; key heads are shared by runs of query heads."""
    y, share = torch.zeros(*q.shape[:3], v.shape[-1]), q.shape[1] // k.shape[1]
    for b, h, t in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        i, row = int(POS[b, t]), [s for s in range(POS.shape[1]) if POS[b, s] >= 0]
        read = [s for s in row if i >= 0 and pattern(b, h, POS[b, t], POS[b, s])]
        if not read:
            continue
        first, last = RANGES[pattern](i, len(row))
        size, hidden = last - first + 1, torch.tanh(q[b, h, t] @ bias.inner[h])
        centre = first + size * sigmoid(hidden @ bias.centre[h])
        if isinstance(bias, QueryLocalness):
            width = size * sigmoid(hidden @ bias.window[h])
        elif isinstance(bias, LayerLocalness):
            mean = sum(k[b, h // share, s] for s in read) / len(read)
            width = size * sigmoid(torch.tanh(mean @ bias.summary[h]) @ bias.window[h])
        else:
            width = 2.5
        scores = [
            float(q[b, h, t] @ k[b, h // share, s]) / math.sqrt(q.shape[-1])
            - (int(POS[b, s]) - centre) ** 2 / (2 * (width / 2) ** 2)
            for s in read
        ]
        y[b, h, t] = torch.tensor(scores).softmax(0) @ v[b, h // share, read]
    return y


@pytest.mark.parametrize("pattern", RANGES, ids=repr)
@pytest.mark.parametrize("kind", KINDS, ids=["query", "layer", "fixed"])
def test_equals_a_loop_over_the_equations(kind: type[Localness], pattern: Pattern) -> None:
    bias = kind(HEADS, WIDTH)
    q, k, v = torch.randn(2, HEADS, 7, WIDTH), torch.randn(2, 2, 7, WIDTH), torch.randn(2, 2, 7, 2)
    actual = attend(q, k, v, q_pos=POS[:, None], k_pos=POS[:, None], pattern=pattern, bias=bias).y
    torch.testing.assert_close(actual, naive(bias, q, k, v, pattern), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS, ids=["query", "layer", "fixed"])
def test_a_source_is_read_around_places_in_it(kind: type[Localness]) -> None:
    """Of other length than its reader: centres lie between its ends, and a padded tail does not move them."""
    bias, layer = kind(2, 4), Attention(QKV(8, 2), Softmax(Full()), cross=True)
    layer.mechanism.bias = bias
    x, source = torch.randn(1, 9, 8), torch.randn(1, 5, 8)
    pos = torch.arange(9)[None]
    short = layer(x, None, Context(pos, run=True, source=source[:, :3], source_pos=pos[:, :3])).y
    padded = torch.tensor([[0, 1, 2, -1, -1]])
    torch.testing.assert_close(layer(x, None, Context(pos, run=True, source=source, source_pos=padded)).y, short)
    state = layer.start(1, 9)  # all of a source is there, so its length is known at any step
    first = layer(x[:, :4], state, Context(pos[:, :4], run=True, source=source[:, :3], source_pos=pos[:, :3]))
    last = layer(x[:, 4:], first.state, Context(pos[:, 4:], run=True))
    torch.testing.assert_close(torch.cat([first.y, last.y], 1), short)
    queries, keys = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 3, 4)
    request = make_request(queries, keys, q_pos=pos[:, None], k_pos=pos[:, None, :3], bias=bias).prepare_bias()
    centre = request.queries.extras["local"][..., 0]
    assert ((centre > 0) & (centre < 3)).all()


def test_it_decodes_where_the_pattern_reads_no_further_than_the_query() -> None:
    for kind in KINDS:
        layer = Attention(QKV(8, 2), Softmax(Causal(), kind(2, 4)), aggregation=Concat())
        x, state = torch.randn(2, 6, 8), layer.start(2, 6)
        whole, steps = layer(x).y, []
        for t in range(6):
            out = layer(x[:, t : t + 1], state, Context(torch.full((2, 1), t), run=True))
            steps, state = [*steps, out.y], out.state
        torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-12)
        with pytest.raises(NoState, match="recompute=True"):
            Attention(QKV(8, 2), Softmax(Full(), kind(2, 4))).start(2, 6)


def test_where_a_window_lies_is_learned() -> None:
    """A query of a word reads a fixed share of the row away from it, once U_p says so."""
    bias = FixedLocalness(1, 4, 1.0)
    with torch.no_grad():
        bias.inner.copy_(torch.eye(4)[None])
        bias.centre.copy_(torch.tensor([[50.0, -50.0, 0.0, 0.0]]))
    q, eye = torch.eye(4)[:3].view(1, 1, 3, 4), torch.eye(8).view(1, 1, 8, 8)
    y = attend(q, torch.zeros(1, 1, 8, 4), eye, q_pos=torch.tensor([[[3, 4, 5]]]), bias=bias).y[0, 0]
    assert y[0].argmax() == 7 and y[1].argmax() == 0 and y[0, 7] > 0.8 and y[1, 0] > 0.8
    assert y[2].argmax() == 4  # half of 8


def test_a_window_that_closed_reads_the_nearest_key_and_stays_finite() -> None:
    bias = QueryLocalness(1, 4).float()
    with torch.no_grad():
        bias.window.fill_(-1e4)
        bias.inner.fill_(10.0)
    q = torch.ones(1, 1, 5, 4, dtype=torch.float32, requires_grad=True)
    eye = torch.eye(5, dtype=torch.float32).view(1, 1, 5, 5)
    y = attend(q, torch.zeros(1, 1, 5, 4, dtype=torch.float32), eye, bias=bias).y
    y.square().sum().backward()
    assert (y.amax(-1) == 1).all() and q.grad is not None and q.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bias.parameters())


def test_what_another_bias_shut_out_stays_out_and_two_do_not_meet() -> None:
    first, other = QueryLocalness(2, 4), FixedLocalness(2, 4, 3.0)
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    pos = torch.arange(6)[None, None]
    request = make_request(q, k, v, q_pos=pos, k_pos=pos, bias=Plus(first, other)).prepare_bias()
    assert set(request.queries.extras) == {"0.local", "1.local"}
    assert not torch.equal(*request.queries.extras.values())


def test_what_does_not_fit_is_refused() -> None:
    for kind in KINDS:
        with pytest.raises(ValueError, match=r"has head_dim=4, but got queries of width 8\. Make them equal"):
            Attention(QKV(16, 2), Softmax(Full(), kind(2, 4)))
        with pytest.raises(ValueError, match=r"Localness\(2, 4\) in a layer of 4 heads"):
            attend(*torch.zeros(3, 1, 4, 5, 4), bias=kind(2, 4))
    with pytest.raises(ValueError, match="width=0"):
        FixedLocalness(2, 4, 0)
    with pytest.raises(ValueError, match="heads=0"):
        QueryLocalness(0, 4)


def test_in_bfloat16_a_place_in_a_long_row_is_missed_by_less_than_a_position() -> None:
    """Computed in bfloat16 the share of the row, and so the place, was off by up to 20 positions of 2,048."""
    bias = FixedLocalness(2, 8).bfloat16()
    q = torch.randn(1, 2, 2048, 8).bfloat16()
    queries, keys = Queries(q, torch.arange(2048)[None, None]), Keys(q, q, torch.arange(2048)[None, None])
    with torch.no_grad():
        place = bias.prepare(Request(queries, keys, Full(), Product()))["local"][..., 0]
        hidden = torch.einsum("bhtk,hkl->bhtl", q.double(), bias.inner.double()).tanh()
        want = 2048 * torch.einsum("bhtk,hk->bht", hidden, bias.centre.double()).sigmoid()
    assert (place.double() - want).abs().max() < 0.1
