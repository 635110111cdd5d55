"""`prepare`: a bias that must see the whole row gives the same read whole and in pieces."""

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from kinformer.attend import attend, read
from kinformer.core.attention_output import merge, received_attention, weights
from kinformer.core.bias import Bias, Plus, ScoreFn, at
from kinformer.core.heads import StateSpec
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask, scores
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from tests.nn.biases.requests import make_request

pytestmark = pytest.mark.usefixtures("float64")
POS = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [-1, -1, 0, 1, 2, 3, 4, 5, 6]])


class PredictedCentre(Bias):
    """-(j - P_i)^2 / 8 around a predicted centre P_i = I sigmoid(w_h.q_i), I being the length of the row."""

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.w = nn.Parameter(torch.randn(heads, head_dim))

    def prepare(self, request: Request) -> Mapping[str, Tensor]:
        length = (request.keys.pos >= 0).sum(-1)[..., None, None]  # [B 1 1 1]: a piece would not tell
        return {"centre": length * torch.sigmoid(torch.einsum("bhtk,hk->bht", request.queries.q, self.w))[..., None]}

    def bind(self, piece: Request) -> ScoreFn:
        centre, k_pos = piece.queries.extras["centre"], piece.keys.pos
        return lambda s, b, h, i, j: s - (at(k_pos, b, h, j) - centre[b, h, i, 0]) ** 2 / 8

    def start(self, spec: StateSpec) -> None:
        raise NoState("PredictedCentre wants the row's length; use generate(..., recompute=True)")


def naive(bias: PredictedCentre, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
    y = torch.zeros_like(v)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        keys = [j for j in range(9) if min(POS[b, i], POS[b, j]) >= 0 and pattern(b, h, POS[b, i], POS[b, j])]
        if keys:
            centre = (9, 7)[b] / (1 + torch.exp(-q[b, h, i] @ bias.w[h]))
            near = torch.stack([(POS[b, j] - centre) ** 2 / 8 for j in keys])
            y[b, h, i] = (k[b, h, keys] @ q[b, h, i] / math.sqrt(q.shape[-1]) - near).softmax(0) @ v[b, h, keys]
    return y


@pytest.mark.parametrize("pattern", [Full(), Band(3)], ids=repr)
def test_pieces_equal_the_whole(pattern: Pattern) -> None:
    bias = PredictedCentre(2, 4)
    q, k, v = torch.randn(3, 2, 2, 9, 4)
    request = make_request(q, k, v, q_pos=POS[:, None], k_pos=POS[:, None], pattern=pattern, bias=bias).prepare_bias()
    whole = read(request)
    torch.testing.assert_close(whole.y, naive(bias, q, k, v, pattern), rtol=0, atol=1e-12)
    pieces = []
    for lo, hi in ((0, 2), (2, 7), (7, 9)):
        parts = [read(request.piece(slice(lo, hi), slice(*columns))) for columns in ((0, 4), (4, 9))]
        pieces.append(merge(*parts))
    torch.testing.assert_close(torch.cat([piece.y for piece in pieces], 2), whole.y, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([piece.lse for piece in pieces], 2), whole.lse, rtol=0, atol=1e-12)
    matrix = torch.where(full_mask(request), torch.exp(scores(request) - whole.lse[..., None].clamp_min(-1e9)), 0.0)
    at = torch.tensor([[3, 8], [2, 5]])
    rows = torch.stack([matrix[b][:, at[b]] for b in range(2)])
    torch.testing.assert_close(weights(request, whole.lse, at), rows, rtol=0, atol=1e-12)
    torch.testing.assert_close(received_attention(request, whole.lse), matrix.sum(2), rtol=0, atol=1e-12)


def test_attend_and_a_layer_prepare_it_themselves() -> None:
    bias = PredictedCentre(2, 4)
    layer, x = Attention(QKV(8, 2), Softmax(Full(), bias), aggregation=Concat()), torch.randn(2, 9, 8)
    queries, keys = layer.projection(x, POS, x, POS)
    want = naive(bias, queries.q, keys.k, keys.v, Full())
    actual = attend(queries.q, keys.k, keys.v, q_pos=POS[:, None], k_pos=POS[:, None], bias=bias).y
    torch.testing.assert_close(actual, want, rtol=0, atol=1e-12)
    y = layer(x, None, Context(POS)).y
    torch.testing.assert_close(y, want.transpose(1, 2).flatten(2), rtol=0, atol=1e-12)


def test_two_of_them_in_a_plus_are_told_apart() -> None:
    first, other = PredictedCentre(2, 4), PredictedCentre(2, 4)
    q, k, v = torch.randn(3, 2, 2, 9, 4)
    at = {"q_pos": POS[:, None], "k_pos": POS[:, None]}
    combined, alone = (make_request(q, k, v, **at, bias=bias).prepare_bias() for bias in (Plus(first, other), other))
    assert set(combined.queries.extras) == {"0.centre", "1.centre"}
    assert torch.equal(combined.queries.extras["1.centre"], alone.queries.extras["centre"])
    added = scores(combined) - scores(make_request(q, k, v, **at, bias=first).prepare_bias())
    torch.testing.assert_close(added, scores(alone) - scores(make_request(q, k, v, **at)), rtol=0, atol=1e-12)


def test_it_has_no_state() -> None:
    for bias in (PredictedCentre(2, 4), Plus(PredictedCentre(2, 4))):
        with pytest.raises(NoState, match="wants the row's length"):
            Attention(QKV(8, 2), Softmax(Band(3, 0), bias)).start(1, 9)
