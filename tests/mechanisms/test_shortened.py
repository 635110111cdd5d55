"""Shortened: a mechanism over pooled keys is that mechanism over their means."""

import pytest
import torch

from kinformer.attention import Attention
from kinformer.biases.alibi import ALiBi
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.execute import attend
from kinformer.mechanisms.shortened import Shortened
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full
from kinformer.projections.qkv import QKV
from kinformer.shorteners.pooled import Pooled

pytestmark = pytest.mark.usefixtures("float64")
X = torch.randn(2, 9, 8, dtype=torch.float64)
POS = torch.arange(9).expand(2, 9)


def layer(mechanism, **given):
    torch.manual_seed(1)
    return Attention(QKV(8, 2, **given), mechanism)


@pytest.mark.parametrize("pattern", [Full(), Causal(), Causal() & Band(4)], ids=str)
@pytest.mark.parametrize("key_heads", [1, 2])
def test_it_reads_the_means_where_they_stand(pattern, key_heads):
    part = layer(Shortened(Softmax(pattern, ALiBi(2)), Pooled(3)), key_heads=key_heads)
    queries, keys = part.projection.both(X, POS)
    means = [x.unflatten(2, (3, 3)).mean(3) for x in (keys.k, keys.v)]
    at = torch.tensor([2, 5, 8]).expand(2, 1, 3)
    wanted = attend(queries.q, *means, pattern=pattern, bias=ALiBi(2), q_pos=POS[:, None], k_pos=at).y
    assert torch.allclose(part(X).y, part.aggregation(wanted, POS), atol=1e-13)


def test_one_key_a_piece_is_the_mechanism_itself():
    plain, short = layer(Softmax(Causal())), layer(Shortened(Softmax(Causal()), Pooled(1)))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :3] = False
    ctx = Context.of(X, mask)
    assert torch.allclose(plain(X, None, ctx).y, short(X, None, ctx).y, atol=1e-13)


def test_under_causal_no_query_sees_what_comes_after_it():
    part = layer(Shortened(Softmax(Causal()), Pooled(2)))
    x = X.clone().requires_grad_()
    y = part(x).y
    for t in range(9):
        (grad,) = torch.autograd.grad(y[:, t].sum(), x, retain_graph=True)
        assert grad[:, t + 1 :].count_nonzero() == 0


def test_under_causal_a_later_token_changes_nothing_by_being_there():
    """The last mean, which may be of fewer tokens than the others, is read only when it is whole."""
    part = layer(Shortened(Softmax(Causal()), Pooled(4)))
    whole = part(X).y
    for t in range(1, 9):
        assert torch.allclose(part(X[:, :t]).y, whole[:, :t], atol=1e-13)


def test_a_row_whose_keys_are_all_padding_reads_nothing():
    part = layer(Shortened(Softmax(Full(), lse=False), Pooled(2)))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 1:] = False
    y = part(X, None, Context.of(X, mask)).y
    alone = part(X[:1, :1], None, Context.of(X[:1, :1])).y
    assert y.isfinite().all() and torch.allclose(y[0, 0], alone[0, 0], atol=1e-13)


def test_a_source_is_shortened_in_every_call():
    part = Attention(QKV(8, 2), Shortened(Softmax(Full()), Pooled(4)), cross=True)
    source, source_pos = torch.randn(2, 6, 8), torch.arange(6).expand(2, 6)
    y = part(X, None, Context(POS, source=source, source_pos=source_pos)).y
    queries, keys = part.projection(X, POS, source, source_pos)
    means = [torch.stack([x[:, :, :4].mean(2), x[:, :, 4:].mean(2)], 2) for x in (keys.k, keys.v)]
    wanted = attend(queries.q, *means, q_pos=POS[:, None], k_pos=torch.tensor([[[3, 7]]] * 2)).y
    assert torch.allclose(y, part.aggregation(wanted, POS), atol=1e-13)
    with pytest.raises(ValueError, match="Shortened keeps no source; give Context"):
        part(X, None, Context(POS))


def test_what_it_cannot_do_is_refused_with_advice():
    part = layer(Shortened(Softmax(Full()), Pooled(3)))
    with pytest.raises(
        NoState, match=r"Pooled makes a key of several tokens .*; use .*generate\(..., recompute=True\)"
    ):
        part.start(2, 9)
    for limits in ({"only": Causal()}, {"also": Band(1)}):
        with pytest.raises(ValueError, match="ctx.only and ctx.also speak of single tokens"):
            part(X, None, Context(POS, **limits))


def test_it_wants_and_sends_what_its_mechanism_does():
    inner = Softmax(Causal(), ALiBi(2))
    sizes = layer(inner).sizes
    part = Shortened(inner, Pooled(2))
    assert (part.wants, part.sends) == (inner.wants, inner.sends)
    assert part.sides(sizes) == inner.sides(sizes) and part.key_sides(sizes) == inner.key_sides(sizes)
