"""ResidualScores: its equation, which pairs it refuses, how seldom it looks, and what -inf from below becomes."""

import inspect

import pytest
import torch
from torch import Tensor

from kinformer.attend import read
from kinformer.core.attention_output import weights
from kinformer.core.layer import Context, PerPair, PerToken
from kinformer.core.memo import Memo
from kinformer.core.pair_map import PairMap
from kinformer.core.patterns.causal import Causal
from kinformer.core.score_matrix import scores
from kinformer.core.state import share_positions
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.scores.residual import ResidualScores
from tests.looks import Looks
from tests.nn.biases.requests import make_request

pytestmark = pytest.mark.usefixtures("float64")
POS = torch.tensor([[[0, 1, 2, 3, 4]], [[-1, 0, 1, 2, 3]]])
WEIGHTS = [(1.0, 1.0), (0.7, 0.3), (0.5, -2.0), (0.0, 1.0), (-1.0, 0.0)]


def residual_request(sent: PerPair | PerToken | None = None, score: ResidualScores | None = None, **keywords: object):
    q, k = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    below = {} if sent is None else {"scores": sent}
    return make_request(q, k, q_pos=POS, k_pos=POS, score=score or ResidualScores(), below=below, **keywords)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_the_equation(weights: tuple[float, float]) -> None:
    sent, score = PerPair(torch.randn(2, 3, 5, 5), POS, POS), ResidualScores(*weights)
    request = residual_request(sent, score)
    actual = score(request)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, (2, 3, 5, 5))).tolist():
        own = request.queries.q[b, h, i] @ request.keys.k[b, h, j] / 2
        want = weights[0] * own + weights[1] * sent.scores[b, h, i, j]
        torch.testing.assert_close(actual[b, h, i, j], want, rtol=0, atol=1e-12)


class Doubled(PairMap):
    """A stand-in for g: twice the score, and of the reversed heads."""

    def forward(self, x, mask):
        assert mask.dtype == torch.bool
        return 2 * x.flip(1)


def test_what_comes_from_below_is_changed_first() -> None:
    """Row 100's w1 A + w2 g(A beneath); a pair that g leaves shut out stays out."""
    sent = torch.randn(2, 3, 5, 5)
    sent[0, 0, 2, 1] = -torch.inf
    request = residual_request(PerPair(sent, POS, POS), ResidualScores(0.7, -0.3, Doubled()), pattern=Causal())
    own = request.queries.q @ request.keys.k.mT / 2
    want = (0.7 * own - 0.3 * 2 * sent.flip(1)).masked_fill(sent.flip(1) == -torch.inf, -torch.inf)
    torch.testing.assert_close(scores(request), want, rtol=0, atol=1e-12)
    assert (want == -torch.inf).sum() == 1 and want[0, 2, 2, 1] == -torch.inf
    with pytest.raises(ValueError, match="change is the class MixHeads; give a PairMap"):
        inspect.unwrap(ResidualScores.__init__)(ResidualScores.__new__(ResidualScores), change=MixHeads)


def test_the_lowest_block_takes_the_product_as_it_is() -> None:
    request = residual_request(score=ResidualScores(0.7, 0.3))
    torch.testing.assert_close(scores(request), request.queries.q @ request.keys.k.mT / 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_minus_infinity_from_below_stays_out_and_gives_no_nan(weights: tuple[float, float]) -> None:
    """0 times -inf is NaN, and a negative weight would make it +inf: the pair that counts most of all."""
    out = torch.rand(2, 3, 5, 5) < 0.4
    out[0, 0, 2] = True  # a query to whom all is shut
    level = torch.randn(2, 3, 5, 5, requires_grad=True)
    request = residual_request(PerPair(level.masked_fill(out, -torch.inf), POS, POS), ResidualScores(*weights))
    q = request.queries.q.requires_grad_()
    actual = scores(request)
    assert torch.equal(actual == -torch.inf, out & (weights[1] != 0)) and not (actual.isnan() | actual.isposinf()).any()
    result = read(request)
    gradients = torch.autograd.grad(result.y.sin().sum(), [q, level], allow_unused=True)
    assert result.y.isfinite().all() and all(g is None or g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("argument", ["q_pos", "k_pos"])
def test_scores_of_other_positions_are_refused(argument: str) -> None:
    sent = PerPair(torch.randn(2, 3, 5, 5), POS, POS)
    scores(residual_request(sent._replace(**{argument: POS.clone()})))
    with pytest.raises(
        ValueError, match="3 heads x 5 queries x 5 keys.* belong to other pairs than this layer's 3 x 5 x 5 pairs"
    ):
        scores(residual_request(sent._replace(**{argument: POS + (POS == 4)})))


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 3, 4, 5), (2, 1, 5, 5), (2, 6, 5, 5)], ids=str)
def test_scores_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    sent = PerPair(torch.randn(shape), POS[..., : shape[2]], POS[..., : shape[3]])
    with pytest.raises(ValueError, match="Give layers that share scores the same pattern"):
        scores(residual_request(sent))


def test_what_is_not_of_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="'scores' from the block below must be PerPair scores: got PerToken"):
        scores(residual_request(PerToken(torch.randn(2, 5, 3))))


def test_positions_that_are_one_object_are_not_looked_at_and_others_once() -> None:
    memo, other = Memo(), POS.clone()
    with Looks() as looks:
        scores(residual_request(PerPair(torch.randn(2, 3, 5, 5), POS, POS), memo=memo))
    assert looks.count == 0
    for count in (1, 0, 0):  # three layers of one forward
        with Looks() as looks:
            scores(residual_request(PerPair(torch.randn(2, 3, 5, 5), other, POS), memo=memo))
        assert looks.count == count


def stack(depth: int) -> Stack:
    def mechanism() -> Explicit:
        return Explicit(Causal(), score=ResidualScores(), up=True)

    return Stack(PreNorm(Attention(QKV(16, 2), mechanism())) for _ in range(depth))


def test_a_stack_does_not_look_at_its_positions() -> None:
    """Without a state, and in a step where the caches share theirs, which looks once for all of its layers."""
    x, pos = torch.randn(2, 6, 16), torch.arange(6).expand(2, -1)

    def looks(depth: int) -> tuple[int, int]:
        layers, ctx = stack(depth), Context(pos, run=True)
        with Looks() as whole:
            layers(x, None, ctx)
        state = layers(x[:, :5], share_positions(layers.start(2, 6)), Context(pos[:, :5], run=True)).state
        with Looks() as step:
            layers(x[:, 5:], state, Context(pos[:, 5:], run=True))
        return whole.count, step.count

    assert looks(1) == looks(4) and looks(4)[0] == 0


def test_pieces_are_of_the_whole_and_are_not_looked_at() -> None:
    request = residual_request(PerPair(torch.randn(2, 3, 5, 5), POS, POS), pattern=Causal())
    actual = scores(request)
    at = torch.tensor([[4, 1], [2, 3]])
    with Looks() as looks:
        piece = scores(request.piece(slice(1, 4), slice(0, 3)))
        weights(request, torch.zeros(2, 3, 5), at)
    assert looks.count == 0
    torch.testing.assert_close(piece, actual[:, :, 1:4, :3], rtol=0, atol=1e-12)
    result = read(request)
    rows = weights(request, result.lse, at)
    y = rows @ request.keys.v
    torch.testing.assert_close(y, torch.stack([result.y[b][:, at[b]] for b in range(2)]), rtol=0, atol=1e-12)


def test_a_softmax_takes_them_too() -> None:
    """No executor but those that ask the score itself may serve."""
    request = residual_request(PerPair(torch.randn(2, 3, 5, 5), POS, POS), pattern=Causal(), lse=False)
    below = request.below["scores"]
    logits = (request.queries.q @ request.keys.k.mT / 2 + below.scores).masked_fill(~mask(), -torch.inf)
    want = torch.where(POS[:, 0, None, :, None] >= 0, logits.softmax(-1), 0.0) @ request.keys.v
    torch.testing.assert_close(read(request).y, want, rtol=0, atol=1e-12)


def mask() -> Tensor:
    q, k = POS[..., :, None], POS[..., None, :]
    return (k <= q) & (k >= 0) & (q >= 0)
