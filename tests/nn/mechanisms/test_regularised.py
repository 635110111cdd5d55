"""Regularised: reads as its mechanism does, and reports each penalty of its heads by name, in training alone."""

import pytest
import torch

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.heads import Keys
from kinformer.core.layer import Out
from kinformer.core.regulariser import Regulariser
from kinformer.core.request import Request
from tests.nn.mechanisms.heads import POS, close, random_heads, real_tokens, run, softmax_sum

pytestmark = pytest.mark.usefixtures("float64")


class ValueMinusRead(Regulariser):
    """The sum over heads of |v_t - y_t|^2: what a token's heads read beside their own values."""

    key, across = "distance", False

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> torch.Tensor:
        assert keys is not None
        return (keys.v - read.y).square().sum((1, 3))


class Halved(kf.Regularised):
    """Reports half of each penalty."""

    def forward(self, *arguments: object) -> Out[AttentionOutput]:
        out = super().forward(*arguments)  # type: ignore[arg-type]
        return out._replace(aux={key: penalty / 2 for key, penalty in out.aux.items()})


def check(kind: type[kf.Regularised]) -> None:
    """Of both regularisers: the toy's sum, and the mean cosine of the outputs of all pairs of heads."""
    mechanism, heads = kind(kf.Softmax(kf.Causal()), ValueMinusRead(), kf.OutputDisagreement()), random_heads()
    out = run(mechanism.train(), heads)
    assert set(out.aux) == {"distance", "output_disagreement"}
    for b in range(2):
        for i in real_tokens(b):
            keys = [j for j in real_tokens(b) if POS[b, j] <= POS[b, i]]
            y = []
            for h in range(2):
                scores = [heads.q[b, h, i] @ heads.k[b, h, j] / 2 for j in keys]
                y.append(softmax_sum(scores, [heads.v[b, h, j] for j in keys]))
                close(out.y.y[b, h, i], y[h])
            cosine = y[0] @ y[1] / y[0].norm() / y[1].norm()
            close(out.aux["output_disagreement"][b, i], (2 + 2 * cosine) / 4)
            close(out.aux["distance"][b, i], sum((heads.v[b, h, i] - y[h]).square().sum() for h in range(2)))


def test_it_reads_as_its_mechanism_and_reports_each_penalty() -> None:
    check(kf.Regularised)


def test_halved_penalties_are_noticed() -> None:
    with pytest.raises(AssertionError):
        check(Halved)


def test_in_eval_mode_it_is_the_mechanism_and_no_more() -> None:
    mechanism, heads = kf.Regularised(kf.Softmax(kf.Causal()), kf.OutputDisagreement()).eval(), random_heads()
    out, plain = run(mechanism, heads), run(mechanism.mechanism, heads)
    assert not out.aux and torch.equal(out.y.y, plain.y.y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: kf.Regularised(kf.Softmax(kf.Causal())),
            r"Regularised needs at least one regulariser and no duplicates: got \[\]",
        ),
        (
            lambda: kf.Regularised(kf.Softmax(kf.Causal()), kf.OutputDisagreement(), kf.OutputDisagreement()),
            "no duplicates",
        ),
        (
            lambda: kf.Regularised(kf.TopK(kf.Causal(), 2), kf.OutputDisagreement()),
            "TopK has no weights of single pairs",
        ),
        (
            lambda: kf.Regularised(kf.Softmax(kf.Causal(), lse=False), kf.PositionDisagreement()),
            "PositionDisagreement needs the mechanism's lse",
        ),
    ],
)
def test_what_reports_nothing_or_the_same_twice_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
