"""PredictiveAttention: own scores joined with a convolution of those beneath, by pairs, and their shares swapped."""

import pytest
import torch
from torch import Tensor

import kinformer as kf
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, PerPair
from tests.nn.mechanisms.heads import close

pytestmark = pytest.mark.usefixtures("float64")

LENGTH, ALPHA, SLOPE = 6, 0.3, 0.2


class Swapped(kf.PredictiveAttention):
    """The shares of own and predicted scores are exchanged."""

    def combine_scores(self, scores: Tensor, inputs: Tensor, convolved: Tensor) -> Tensor:
        return (1 - self.alpha) * scores + self.alpha * convolved


def check(kind: type[kf.PredictiveAttention], kernel: str) -> None:
    """s = alpha q.k / sqrt(K) + (1 - alpha) LeakyReLU(conv(s_lower)), a causal kernel ends at the pair itself."""
    causal = kernel == "causal"
    mechanism = kind(kf.Causal() if causal else kf.Full(), 2, alpha=ALPHA, kernel=kernel, slope=SLOPE)
    q, k, v = torch.randn(3, 1, 2, LENGTH, 4).unbind()
    lower = torch.randn(1, 2, LENGTH, LENGTH)
    ctx = Context(torch.arange(LENGTH)[None], run=True)
    ctx = ctx.replace(below={"scores": PerPair(lower, ctx.by_head, ctx.by_head)})
    y = mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y
    weight, bias = mechanism.convolution.conv.weight, mechanism.convolution.conv.bias  # [2 2 3 3], [2]
    first = -2 if causal else -1
    for h, i in ((h, i) for h in range(2) for i in range(LENGTH)):
        keys = range(i + 1 if causal else LENGTH)
        scores = []
        for j in keys:
            total = bias[h]
            for channel, n, m in ((c, n, m) for c in range(2) for n in range(3) for m in range(3)):
                row, column = i + first + n, j + first + m
                inside = 0 <= row < LENGTH and 0 <= column < LENGTH
                if inside and (column <= row or not causal):
                    total = total + weight[h, channel, n, m] * lower[0, channel, row, column]
            predicted = total if total > 0 else SLOPE * total
            scores.append(ALPHA * (q[0, h, i] @ k[0, h, j]) / 2 + (1 - ALPHA) * predicted)
        close(y[0, h, i], torch.stack(scores).softmax(0) @ v[0, h, : len(keys)])


@pytest.mark.parametrize("kernel", ["centred", "causal"])
def test_scores_are_a_share_of_the_product_and_a_share_of_the_prediction(kernel: str) -> None:
    check(kf.PredictiveAttention, kernel)


def test_swapped_shares_are_noticed() -> None:
    with pytest.raises(AssertionError):
        check(Swapped, "centred")


def test_the_lowest_block_takes_the_product_as_it_is() -> None:
    q, k, v = torch.randn(3, 1, 2, LENGTH, 4).unbind()
    ctx = Context(torch.arange(LENGTH)[None], run=True)
    y = kf.PredictiveAttention(kf.Full(), 2)(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y
    close(y, (q @ k.mT / 2).softmax(-1) @ v)
