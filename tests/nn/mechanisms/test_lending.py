"""Lending: softmax attention pair by pair, the weights that it sends up, and queries sent up without their scale."""

import pytest
import torch
from torch import Tensor

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.layer import Out, PairFactors, PerPair
from kinformer.core.request import Request
from tests.nn.mechanisms.heads import POS, close, random_heads, real_tokens, run

pytestmark = pytest.mark.usefixtures("float64")

SCALE = 0.9


class Unscaled(kf.Lending):
    """The scale of its own products is missing in what goes up."""

    def read(self, request: Request) -> Out[AttentionOutput]:
        out = super().read(request)
        return out._replace(up={"weights": out.up["weights"]._replace(q=request.queries.q)})


def sent_weights(sent: PairFactors | PerPair, b: int, h: int, i: int, keys: list[int]) -> Tensor:
    """The weights that a layer above makes of what was sent: softmax(q.k / sqrt(K)) of queries and keys."""
    if isinstance(sent, PerPair):
        return sent.scores[b, h, i, keys]
    group = h * sent.k.shape[1] // sent.q.shape[1]
    return (sent.k[b, group, keys] @ sent.q[b, h, i] / sent.q.shape[-1] ** 0.5).softmax(0)


def check(mechanism: kf.Lending, groups: int) -> None:
    heads = random_heads(groups=groups)
    out = run(mechanism, heads)
    distances = None if mechanism.bias is None else mechanism.bias
    for b, h in ((b, h) for b in range(2) for h in range(2)):
        g = h * groups // 2
        for i in real_tokens(b):
            keys = [j for j in real_tokens(b) if POS[b, j] <= POS[b, i]]
            scores = SCALE * heads.k[b, g, keys] @ heads.q[b, h, i]
            if distances is not None:  # ALiBi of two heads: 1/16 and 1/256 per position
                scores = scores - 2.0 ** (-4 * (h + 1)) * (POS[b, i] - POS[b, keys])
            weights = scores.exp() / scores.exp().sum()
            close(out.y.y[b, h, i], weights @ heads.v[b, g, keys])
            close(sent_weights(out.up["weights"], b, h, i, keys), weights)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_it_reads_by_the_weights_that_it_sends_up(groups: int, biased: bool) -> None:
    check(kf.Lending(kf.Causal(), kf.ALiBi(2) if biased else None, scale=SCALE), groups)


def test_weights_sent_up_without_the_scale_are_noticed() -> None:
    with pytest.raises(AssertionError):
        check(Unscaled(kf.Causal(), scale=SCALE), 2)


def test_without_a_bias_no_matrix_of_pairs_goes_up() -> None:
    heads = random_heads()
    assert isinstance(run(kf.Lending(kf.Causal()), heads).up["weights"], PairFactors)
    assert isinstance(run(kf.Lending(kf.Causal(), kf.ALiBi(2)), heads).up["weights"], PerPair)
    assert torch.equal(run(kf.Lending(kf.Causal()), heads).y.y, run(kf.Softmax(kf.Causal()), heads).y.y)
