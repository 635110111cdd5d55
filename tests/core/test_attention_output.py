"""AttentionOutput, merge, weights and received_attention against dense sums."""

import pytest
import torch

from kinformer.attend import attend
from kinformer.core import attention_output as module
from kinformer.core.attention_output import AttentionOutput, merge, received_attention, weights
from kinformer.core.heads import Keys, Queries
from kinformer.core.patterns.causal import Causal
from kinformer.core.request import Request
from kinformer.core.scores.product import Product
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided

B, H, G, T, K = 2, 4, 2, 11, 6


@pytest.fixture
def call():
    g = torch.Generator().manual_seed(0)
    q = torch.randn(B, H, T, K, generator=g, dtype=torch.float64, requires_grad=True)
    k = torch.randn(B, G, T, K, generator=g, dtype=torch.float64, requires_grad=True)
    pos = torch.arange(T).expand(B, -1).clone()
    pos[0, :2] = -1
    return q, k, {"q_pos": pos[:, None], "k_pos": pos[:, None], "pattern": Causal() & ~Band(0)}


def dense(q, k, q_pos, k_pos, pattern):
    """The attention matrix, pair by pair."""
    a = torch.zeros(B, H, T, T, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                at, to = int(q_pos[b, 0, i]), k_pos[b, 0].tolist()
                keys = [j for j in range(T) if at >= 0 and to[j] >= 0 and bool(pattern(b, h, at, to[j]))]
                if keys:
                    logits = torch.stack([(q[b, h, i] * k[b, h // (H // G), j]).sum() / K**0.5 for j in keys])
                    a[b, h, i, keys] = logits.softmax(0).detach()
    return a


def request(q, k, q_pos, k_pos, pattern):
    return Request(Queries(q, q_pos), Keys(k, k, k_pos), pattern, Product(), None, K**-0.5)


def test_reference_and_weights_are_the_naive_matrix(call):
    q, k, where = call
    v = torch.randn(B, G, T, 3, dtype=torch.float64)
    actual = attend(q, k, v, **where)
    a = dense(q, k, **where)
    torch.testing.assert_close(actual.y, a @ v.repeat_interleave(2, 1))
    at = torch.arange(T).expand(B, -1)
    torch.testing.assert_close(weights(request(q, k, **where), actual.lse, at), a)
    torch.testing.assert_close(weights(request(q, k, **where), actual.lse, at[:, [7, 3]]), a[:, :, [7, 3]])


def test_mass_is_the_column_sum_in_blocks_with_gradients(call, monkeypatch):
    q, k, where = call
    lse = attend(q, k, k, **where).lse
    whole = received_attention(request(q, k, **where), lse)
    torch.testing.assert_close(whole, dense(q, k, **where).sum(2))
    (dq,) = torch.autograd.grad((whole**2).sum(), q, retain_graph=True)
    monkeypatch.setattr(module, "BLOCK", 4)
    blocks = received_attention(request(q, k, **where), lse)
    torch.testing.assert_close(blocks, whole)
    torch.testing.assert_close(torch.autograd.grad((blocks**2).sum(), q, retain_graph=True)[0], dq)
    assert dq.isfinite().all() and dq.abs().max() > 0


def test_merge_of_disjoint_patterns_is_the_read_of_their_union(call):
    q, k, where = call
    left, right = Band(2) & Causal(), Causal() & Strided(3) & ~Band(2)
    pieces = [attend(q, k, k, **(where | {"pattern": p})) for p in (left, right)]
    whole = attend(q, k, k, **(where | {"pattern": left | right}))
    for pair in (pieces, pieces[::-1]):
        joined = merge(*pair)
        torch.testing.assert_close(joined.y, whole.y)
        torch.testing.assert_close(joined.lse, whole.lse)


def test_merge_is_associative_and_takes_one_and_nothing():
    reads = [AttentionOutput(torch.randn(1, 1, 3, 2), torch.randn(1, 1, 3) * 50) for _ in range(3)]
    torch.testing.assert_close(merge(merge(*reads[:2]), reads[2]).y, merge(reads[0], merge(*reads[1:])).y)
    torch.testing.assert_close(merge(reads[0]).y, reads[0].y)
    with pytest.raises(ValueError, match="at least one"):
        merge()
    with pytest.raises(ValueError, match="argument 1 has no lse"):
        merge(reads[0], reads[1]._replace(lse=None))


def test_merge_of_no_keys_is_zero_with_finite_gradients():
    y = torch.randn(2, 1, 1, 3, 2, requires_grad=True)
    lse = torch.full((2, 1, 1, 3), -torch.inf)
    lse[0, 0, 0, 1] = 800.0  # exp would overflow; row 0 has one key set, the others none
    lse.requires_grad_()
    merged = merge(AttentionOutput(y[0], lse[0]), AttentionOutput(y[1], lse[1]))
    assert merged.lse.flatten().tolist() == [-torch.inf, 800.0, -torch.inf]
    torch.testing.assert_close(merged.y[0, 0], torch.stack([torch.zeros(2), y[0, 0, 0, 1], torch.zeros(2)]))
    for gradient in torch.autograd.grad(merged.y.sum() + merged.lse[merged.lse > -torch.inf].sum(), (y, lse)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lse_is_float32_or_better_in_every_precision(dtype):
    for given_dtype, lse_dtype in (
        (dtype, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        q = torch.randn(1, 2, 5, 8, dtype=given_dtype)
        output = attend(q, q, q, impl="reference")
        assert output.lse.dtype == lse_dtype and output.y.dtype == given_dtype
        joined = merge(output, output._replace(y=output.y * 2))
        assert joined.lse.dtype == lse_dtype and joined.y.dtype == given_dtype


@pytest.mark.parametrize("pieces", [2, 16])
def test_reads_in_bfloat16_merge_to_half_a_percent(pieces):
    """The error stays that of one read's rounding, however many pieces there are: the lse is float32."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 64, generator=g).bfloat16() for n in (64, 1024, 1024))
    expected = attend(q.double(), k.double(), v.double(), impl="reference").y
    at = torch.arange(1024).expand(2, 1, -1)
    cut = [torch.arange(1024).chunk(pieces)[n] for n in range(pieces)]
    reads = [
        attend(q, k[:, :, columns], v[:, :, columns], q_pos=at[..., :64], k_pos=at[..., columns], impl="reference")
        for columns in cut
    ]
    error = (merge(*reads).y.double() - expected).norm() / expected.norm()
    assert error < 0.005
    # as a bfloat16 lse would have it, which is what this test is about
    rounded = [read._replace(lse=read.lse.bfloat16().float()) for read in reads]
    assert (merge(*rounded).y.double() - expected).norm() / expected.norm() > 1.5 * error


def test_what_is_no_read_is_refused_in_one_line(call) -> None:
    q, k, keywords = call
    read = attend(q, k, k, lse=True, **keywords)
    with pytest.raises(TypeError, match=r"argument 0 is of type list, expected AttentionOutput. Call merge\(a, b\)"):
        merge.__wrapped__([read, read])
