"""Forecast: what it may know of the rows that it forecasts, what it is judged by, and what it refuses."""

from typing import Any

import pytest
import torch

from kinformer.core.mechanism import NoState
from kinformer.models.forecast import _example

pytestmark = pytest.mark.usefixtures("float64")


@torch.no_grad()
def test_it_knows_the_calendar_of_what_comes_and_nothing_else() -> None:
    model = _example().eval()
    batch = model.sample(2, 0, 0)
    said = model.forecast(batch)
    assert said.shape == (2, model.horizon, model.channels)
    for n in range(model.context + model.horizon):
        values, calendar = batch.values.clone(), batch.calendar.clone()
        values[:, n] += 1
        calendar[:, n] += 1
        changed = not torch.equal(model.forecast(batch._replace(values=values)), said)
        assert changed == (n < model.context)
        assert not torch.equal(model.forecast(batch._replace(calendar=calendar)), said)


@torch.no_grad()
@pytest.mark.parametrize("targets", [None, 1])
def test_loss_and_measures_are_mean_errors_of_what_comes(targets: int | None) -> None:
    model = _example(targets).eval()
    batch = model.sample(3, 0, 0)
    wanted = batch.values[:, model.context :]
    apart = model.forecast(batch) - (wanted if targets is None else wanted[..., 1:])  # the last of two
    loss, judged = model(batch), model.judge(batch).totals
    assert float(loss.total) == pytest.approx(float(apart.square().mean())) and loss.count == apart.numel()
    found = {name: float(value / count) for name, (value, count) in judged.items()}
    want = {"mean squared error": apart.square().mean(), "mean absolute error": apart.abs().mean()}
    assert found == pytest.approx({name: float(value) for name, value in want.items()})


@torch.no_grad()
def test_a_smaller_encoder_reads_the_last_half_of_the_known_rows() -> None:
    model: Any = _example().eval()
    seen: list[Any] = []
    for encoder in model.encoders:
        encoder.layers[0].register_forward_hook(lambda part, inputs, out: seen.append(inputs[0]))
    model.forecast(model.sample(2, 0, 0))
    whole, half = seen
    assert whole.shape[1] == 9 and torch.equal(half, whole[:, -4:])


def test_what_it_refuses_is_one_line() -> None:
    model = _example()
    with pytest.raises(ValueError, match="windows of 12 rows of 3 numbers and 2 of their calendar came; 12 rows of 2"):
        model.forecast(model.sample(1, 0, 0)._replace(values=torch.zeros(1, 12, 3)))
    with pytest.raises(NoState, match="train it with a larger horizon"):
        model.start(1, 4)
