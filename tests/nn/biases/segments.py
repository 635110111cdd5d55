"""What every bias that reads segments must stand: a row cut in chunks, and reads cut in pieces."""

import torch

from kinformer.attend import read
from kinformer.core.attention_output import BLOCK, received_attention, weights
from kinformer.core.bias import Bias
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.score_matrix import full_mask, scores
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from tests.nn.biases.requests import make_request


def strong(bias: Bias) -> Bias:
    """The bias with numbers so large that a wrong one shows."""
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    return bias


def the_cut_changes_nothing(bias: Bias, cuts: list[int]) -> None:
    """Twelve tokens in two rows, the second padded at first, under a window that loses keys."""
    layer = Attention(QKV(16, 2), Softmax(Causal() & Band(5), bias))
    x, segment = torch.randn(2, 12, 16), torch.tensor([[0, 1] * 6, [2, 0, 0, 1, 1, 2] * 2])
    pos = torch.stack([torch.arange(12), torch.arange(12) - 2]).clamp_min(-1)
    ctx = Context(pos, labels={"segment": segment})
    whole, state, done, lo = layer(x, None, ctx).y, layer.start(2, 12), [], 0
    for size in cuts:
        out = layer(x[:, lo : lo + size], state, ctx.columns(lo, lo + size))
        state, lo = out.state, lo + size
        done.append(out.y)
    real = pos >= 0
    torch.testing.assert_close(torch.cat(done, 1)[real], whole[real], rtol=0, atol=1e-12)
    assert not torch.allclose(layer(x, None, Context(pos)).y[real], whole[real])  # the segments count


def weights_are_those_of_the_whole(bias: Bias) -> None:
    """Rows of `weights`, pieces of scores and reads, and `received_attention`, which goes by blocks of queries."""
    length = BLOCK + 7
    q, k, v = torch.randn(3, 2, 2, length, 8)
    pos, segment = torch.arange(length).expand(2, 1, -1), torch.randint(0, 3, (2, length))
    request = make_request(q, k, v, q_pos=pos, k_pos=pos, pattern=Causal(), bias=bias, segments=(segment, segment))
    request = request.prepare_bias()
    actual = read(request)
    matrix = torch.where(full_mask(request), torch.exp(scores(request) - actual.lse[..., None]), 0.0)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 2, length), rtol=0, atol=1e-12)
    at = torch.stack([torch.randperm(length)[:9] for _ in range(2)])
    rows = torch.stack([matrix[b][:, at[b]] for b in range(2)])
    torch.testing.assert_close(weights(request, actual.lse, at), rows, rtol=0, atol=1e-12)
    torch.testing.assert_close(received_attention(request, actual.lse), matrix.sum(2), rtol=0, atol=1e-11)
    piece = request.piece(slice(3, 40), slice(10, 30))
    torch.testing.assert_close(scores(piece), scores(request)[:, :, 3:40, 10:30], rtol=0, atol=1e-12)
    torch.testing.assert_close(read(request.piece(slice(9, 60), None)).y, actual.y[:, :, 9:60], rtol=0, atol=1e-12)
