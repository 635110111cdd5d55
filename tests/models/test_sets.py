"""Sets: a number of a set in any order, padding without influence, the two kinds of answers, and the member's forms."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.mechanism import NoState
from kinformer.members.set_transformer import set_transformer
from kinformer.models.support.set_answers import CountAnswer, NumberAnswer

TINY: dict[str, Any] = {"d": 16, "depth": 1, "heads": 2, "inputs": 3}
WAYS: tuple[dict[str, Any], ...] = (
    {"inducing": 3},
    {"inducing": None, "seeds": 2, "form": "published"},
    {"encoder": "alone", "pooling": "mean", "norm": "none"},
    {"inducing": None, "pooling": "max", "decoder": 0},
    {"encoder": "alone", "pooling": "sum"},
)


def make_sets(*sizes: int) -> tuple[Tensor, Tensor]:
    """Sets of these sizes; what stands at padding is no number."""
    elements = torch.randn(len(sizes), max(sizes), 3)
    marks = torch.where(torch.arange(max(sizes)) < torch.tensor(sizes)[:, None], 0, -1)
    return elements.masked_fill((marks < 0)[..., None], torch.nan), marks


@pytest.mark.parametrize("options", WAYS)
def test_order_padding_and_batch_mates_say_nothing(options: dict[str, Any], float64: None) -> None:
    model = set_transformer(**TINY, **options).eval()
    elements, marks = make_sets(7, 4, 1)
    want = model.predict(elements, marks)
    for row, (elements_of_set, mark) in enumerate(zip(elements, marks, strict=True)):
        torch.testing.assert_close(model.predict(elements_of_set[mark >= 0][None], mark[mark >= 0][None])[0], want[row])
    order = torch.rand(3, 7).argsort(1)  # padding comes to stand anywhere
    permuted = model.predict(elements.take_along_dim(order[..., None], 1), marks.take_along_dim(order, 1))
    assert (permuted - want).abs().max() <= 1e-12 * want.abs().max()
    assert not torch.allclose(model.predict(elements.nan_to_num() + 1, marks), want)


def test_in_float32_another_order_moves_an_answer_by_rounding_alone() -> None:
    torch.manual_seed(0)
    model = set_transformer(**TINY, inducing=3).eval()
    torch.nn.init.ones_(model.head.bias)  # answers of about 1: rounding is of what is summed
    elements, marks = make_sets(40, 40)
    order = torch.randperm(40)
    want, elsewhere = model.predict(elements, marks), elements[:, order]
    assert (model.predict(elsewhere, marks) - want).abs().max() <= 1e-6 * want.abs().max()
    reordered = model.encode(elements, marks).y[:, order]
    assert (model.encode(elsewhere, marks).y - reordered).abs().max() <= 1e-6 * reordered.abs().max()


def test_loss_and_measures_are_those_of_each_set(float64: None) -> None:
    (elements, marks), right = make_sets(3, 2, 5), torch.tensor([1.0, 2.0, 4.0])
    number = set_transformer(**TINY).eval()
    off = (number.predict(elements, marks) - right).abs()
    loss = number((elements, marks, right))
    torch.testing.assert_close(loss.total, off.mean())
    assert loss.count == 3 and number.metric == NumberAnswer.metric
    total, count = number.judge((elements, marks, right)).totals["absolute error"]
    torch.testing.assert_close(total, off.detach().sum())
    assert count == 3
    model = set_transformer(**TINY, answer="count").eval()
    rate = model.predict(elements, marks)
    nats = torch.stack([-torch.distributions.Poisson(r).log_prob(n) for r, n in zip(rate, right, strict=True)])
    torch.testing.assert_close(model((elements, marks, right)).total, nats.mean())
    judged = model.judge((elements, marks, right)).totals
    assert next(iter(judged)) == CountAnswer.metric.name == "accuracy"
    predicted = rate.floor()
    likeliest = torch.distributions.Poisson(rate[:, None]).log_prob(torch.arange(9.0)).argmax(1)
    assert torch.equal(predicted, likeliest.double()) and float(judged["accuracy"][0]) == float(
        (predicted == right).sum()
    )


def test_a_count_of_rate_nothing_is_finite() -> None:
    answer, head = CountAnswer(), torch.tensor([-200.0, 0.0], requires_grad=True)
    loss = answer.loss(answer.predict(head), torch.tensor([2.0, 0.0])).sum()
    assert loss.isfinite() and torch.autograd.grad(loss, head)[0].isfinite().all()
    assert math.isclose(float(answer.loss(torch.tensor([3.0]), torch.tensor([0.0]))), 3.0)


def test_answers_are_of_float32_in_half_precision() -> None:
    model = set_transformer(**TINY, answer="count").to(torch.bfloat16)
    elements, marks = make_sets(3, 2)
    assert model.predict(elements.bfloat16(), marks).dtype == torch.float32


def test_a_set_without_elements_is_refused() -> None:
    model = set_transformer(**TINY)
    elements, marks = make_sets(3, 2)
    with pytest.raises(ValueError, match=r"^a set has no elements, so nothing can be predicted for it; leave it out$"):
        model.predict(elements, marks.where(torch.tensor([[True], [False]]), -1))
    with pytest.raises(NoState, match="reads a whole row at once"):
        model.start(1, 4)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"encoder": "alone", "inducing": 3}, "inducing=3 has no effect with encoder=alone"),
        ({"pooling": "mean", "seeds": 2}, "seeds=2 has no effect with pooling=mean"),
        ({"inducing": 0}, "inducing=0: give a whole number of at least 1"),
        ({"seeds": 0}, "seeds=0"),
        ({"decoder": -1}, "decoder=-1"),
        ({"depth": 0}, "depth=0"),
        ({"inputs": 0}, "inputs=0"),
        ({"heads": 3}, "d=16 is not a multiple of heads=3"),
        ({"heads": 3, "form": "published"}, "d=16 is not a multiple of heads=3"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_what_means_nothing_is_refused(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}") as raised:
        set_transformer(**{**TINY, **keywords})
    assert "\n" not in str(raised.value)


def test_every_weight_learns() -> None:
    for options in WAYS:
        model = set_transformer(**TINY, **options)
        model(model.sample(4, 6, 0)).total.backward()
        silent = [name for name, weight in model.named_parameters() if weight.grad is None]
        assert not silent, silent
