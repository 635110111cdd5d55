"""Softmax attention: the naive loop, one mask against merged parts, decoding, and what the layer promises."""

import math

import pytest
import torch

from kinformer.attend import attend
from kinformer.attend.pattern_parts import parts
from kinformer.core.attention_output import merge
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.fixed import Fixed
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV

C = Causal()
STRIDED = C & (Band(3) | Strided(4))
USUAL = [STRIDED, C & Fixed(4, 1), C & (Band(3) | Tokens(2)), Band(2) | Tokens(2) | Rows(2), C & Segment(5, 3)]


def inputs(length=19):
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, length, 4, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3))
    return q, k, v, torch.arange(length).expand(2, 1, -1)


def call(mechanism, q, k, v, pos):
    ctx = Context(pos[:, 0])
    return mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y


def test_reference_is_the_equation():
    q, k, v, pos = inputs()
    actual = attend(q, k, v, q_pos=pos, k_pos=pos, pattern=STRIDED)
    q, k, v = q.detach(), k.detach(), v.detach()
    for b, h, i in ((0, 0, 0), (1, 2, 7), (0, 1, 18)):
        keys = [j for j in range(i + 1) if i - j <= 3 or (i - j) % 4 == 0]
        e = [math.exp(float(q[b, h, i] @ k[b, h, j]) / 2) for j in keys]
        y = sum(w * v[b, h, j] for w, j in zip(e, keys, strict=True)) / sum(e)
        torch.testing.assert_close(actual.y[b, h, i].detach(), y)
        assert actual.lse[b, h, i].item() == pytest.approx(math.log(sum(e)))


@pytest.mark.parametrize("pattern", USUAL, ids=str)
def test_one_mask_is_the_merge_of_the_parts(pattern):
    q, k, v, pos = inputs()
    whole = attend(q, k, v, q_pos=pos, k_pos=pos, pattern=pattern)
    pieces = parts(pattern, q.shape[2])
    joined = merge(*(attend(q, k, v, q_pos=pos, k_pos=pos, pattern=piece.where) for piece in pieces))
    torch.testing.assert_close(joined.y, whole.y)
    torch.testing.assert_close(joined.lse, whole.lse)
    for ours, theirs in zip(
        *(torch.autograd.grad((r.y.sin() + r.lse[..., None].cos()).sum(), (q, k, v)) for r in (joined, whole)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_strided_layer_decodes_what_it_reads_at_once():
    torch.manual_seed(0)
    layer = Attention(QKV(12, 3), Softmax(STRIDED)).double()
    x = torch.randn(2, 23, 12, dtype=torch.float64)
    whole = layer(x, None, Context(torch.arange(23).expand(2, -1))).y
    for cuts in ([1] * 23, [7, 1, 2, 13], [20, 3]):
        state, ys, at = layer.start(2, 23, dtype=torch.float64), [], 0
        for chunk in x.split(cuts, 1):
            out = layer(chunk, state, Context(torch.arange(at, at + chunk.shape[1]).expand(2, -1)))
            state, at = out.state, at + chunk.shape[1]
            ys.append(out.y)
        torch.testing.assert_close(torch.cat(ys, 1), whole)


def test_positions_not_places_decide_who_reads_whom():
    torch.manual_seed(0)
    layer = Attention(QKV(12, 3), Softmax(STRIDED)).double()
    x, pos = torch.randn(1, 9, 12, dtype=torch.float64), torch.arange(9)[None]
    order = torch.randperm(9)
    y = layer(x, None, Context(pos)).y
    torch.testing.assert_close(layer(x[:, order], None, Context(pos[:, order])).y, y[:, order])


def test_scale_and_dropout():
    q, k, v, pos = inputs(5)
    a = call(Softmax(C, scale=0.0), q, k, v, pos).y
    torch.testing.assert_close(a, v.cumsum(2) / torch.arange(1, 6)[:, None])
    dropped = Softmax(C, dropout=0.5)
    dropped_y, lse = call(dropped, q, k, v, pos)
    exact, same = call(dropped.eval(), q, k, v, pos)
    assert not torch.equal(dropped_y, exact)
    torch.testing.assert_close(lse, same)  # of executors that add in another order


def test_without_an_lse_y_is_the_same():
    q, k, v, pos = inputs()
    fast, slow = (call(Softmax(STRIDED, lse=lse), q, k, v, pos) for lse in (False, True))
    assert fast.lse is None
    torch.testing.assert_close(fast.y, slow.y)


def test_reading_ahead_has_no_state_and_says_what_to_do():
    with pytest.raises(NoState, match=r"Causal\(\) & pattern, or generate\(..., recompute=True\)"):
        Attention(QKV(8, 2), Softmax(Full())).start(1, 5)
    layer = Attention(QKV(8, 2), Softmax(C))
    ctx = Context(torch.arange(3)[None], also=Tokens(2))
    with pytest.raises(NoState, match="ahead"):
        layer(torch.randn(1, 3, 8), layer.start(1, 3), ctx)


def test_cross_attention_projects_its_source_once():
    torch.manual_seed(0)
    layer = Attention(QKV(8, 2), Softmax(Full()), cross=True).double()
    source, x = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 4, 8, dtype=torch.float64)
    source_pos = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]])
    pos = torch.arange(4).expand(2, -1)
    first = Context(pos[:, :1], source=source, source_pos=source_pos, only=Band(0))
    whole = layer(x, None, Context(pos, source=source, source_pos=source_pos)).y
    out = layer(x[:, :1], layer.start(2, 4, dtype=torch.float64), first)
    torch.testing.assert_close(out.y, whole[:, :1])  # a batch's own limits are of positions of x, not of the source
    torch.testing.assert_close(layer(x[:, 1:], out.state, Context(pos[:, 1:])).y, whole[:, 1:])
    with pytest.raises(ValueError, match="got no source"):
        layer(x, None, Context(pos))
