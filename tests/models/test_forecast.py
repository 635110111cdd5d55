"""Forecast: what it may know of the rows that it forecasts, what it is judged by, and what it refuses."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.mechanism import NoState
from kinformer.members.informer import informer
from kinformer.models.forecast import _example

pytestmark = pytest.mark.usefixtures("float64")


@torch.no_grad()
def test_it_knows_the_calendar_of_what_comes_and_nothing_else() -> None:
    model = _example().eval()
    batch = model.sample(2, 0, 0)
    predicted = model.forecast(batch)
    assert predicted.shape == (2, model.horizon, model.channels)
    for n in range(model.context + model.horizon):
        values, calendar = batch.values.clone(), batch.calendar.clone()
        values[:, n] += 1
        calendar[:, n] += 1
        changed = not torch.equal(model.forecast(batch._replace(values=values)), predicted)
        assert changed == (n < model.context)
        assert not torch.equal(model.forecast(batch._replace(calendar=calendar)), predicted)


@torch.no_grad()
@pytest.mark.parametrize("targets", [None, 1])
def test_loss_and_measures_are_mean_errors_of_what_comes(targets: int | None) -> None:
    model = _example(targets).eval()
    batch = model.sample(3, 0, 0)
    expected = batch.values[:, model.context :]
    apart = model.forecast(batch) - (expected if targets is None else expected[..., 1:])  # the last of two
    loss, judged = model(batch), model.judge(batch).totals
    assert float(loss.total) == pytest.approx(float(apart.square().mean())) and loss.count == apart.numel()
    measures = {name: float(value / count) for name, (value, count) in judged.items()}
    want = {"mean squared error": apart.square().mean(), "mean absolute error": apart.abs().mean()}
    assert measures == pytest.approx({name: float(value) for name, value in want.items()})


@torch.no_grad()
def test_a_smaller_encoder_reads_the_last_half_of_the_known_rows() -> None:
    model: Any = _example().eval()
    calls: list[Any] = []
    for encoder in model.encoders:
        encoder.layers[0].register_forward_hook(lambda part, inputs, out: calls.append(inputs[0]))
    model.forecast(model.sample(2, 0, 0))
    whole, half = calls
    assert whole.shape[1] == 9 and torch.equal(half, whole[:, -4:])


@torch.no_grad()
def test_a_whole_forecast_against_loops() -> None:
    """Embedded rows, two encoder blocks with the row halved between, zeros behind the label, the decoder, the head."""
    model: Any = informer(
        channels=2,
        targets=1,
        calendar=3,
        context=7,
        label=4,
        horizon=3,
        d=8,
        depth=2,
        heads=2,
        hidden=12,
        attention="full",
    ).eval()
    for weight in model.parameters():
        weight.copy_(torch.randn_like(weight) / 2)
    batch = model.sample(1, 0, 0)
    values, calendar = batch.values[0], batch.calendar[0]

    def linear(part: Any, x: Tensor) -> Tensor:
        return part.weight @ x + (0 if part.bias is None else part.bias)

    def convolved(conv: Any, row: list[Tensor]) -> list[Tensor]:
        between = [torch.zeros_like(row[0]), *row, torch.zeros_like(row[0])]
        return [sum(conv.weight[:, :, a] @ between[t + a] for a in range(3)) + conv.bias for t in range(len(row))]

    def embedded(part: Any, row: list[Tensor], when: Tensor) -> list[Tensor]:
        rows = []
        for t, x in enumerate(convolved(part.values, row)):
            waves = [(math.sin, math.cos)[n % 2](t / 10000 ** (n // 2 * 2 / 8)) for n in range(8)]
            rows.append(x + part.calendar.weight @ when[t] + torch.tensor(waves))
        return rows

    def attended(layer: Any, row: list[Tensor], source: list[Tensor], causal: bool) -> list[Tensor]:
        (q, k, v), outputs = (layer.projection.matrix(name) for name in "qkv"), []
        for i, x in enumerate(row):
            read = [s for j, s in enumerate(source) if not causal or j <= i]
            heads = []
            for at in (slice(0, 4), slice(4, 8)):
                asking, keys, values_read = (
                    [w[at] @ y + b[at] for y in ys] for (w, b), ys in ((q, [x]), (k, read), (v, read))
                )
                weight = torch.tensor([float(asking[0] @ key) / 2 for key in keys]).softmax(0)
                heads.append(sum(w * value for w, value in zip(weight, values_read, strict=True)))
            outputs.append(linear(layer.aggregation.linear, torch.cat(heads)))
        return outputs

    def normed(norm: Any, x: list[Tensor], y: list[Tensor]) -> list[Tensor]:
        def normed_row(z: Tensor) -> Tensor:
            return (z - z.mean()) / (z.var(correction=0) + norm.eps).sqrt() * norm.weight + norm.bias

        return [normed_row(a + b) for a, b in zip(x, y, strict=True)]

    def block(part: Any, row: list[Tensor], causal: bool, source: list[Tensor] | None = None) -> list[Tensor]:
        *attentions, mlp = part.layers
        for n, layer in enumerate(attentions):
            row = normed(part.norms[n], row, attended(layer, row, source if n and source else row, causal and not n))
        return normed(part.norms[-1], row, [linear(mlp.down, F.gelu(linear(mlp.up, x))) for x in row])

    encoder = model.encoders[0]
    row = block(encoder.layers[0], embedded(model.known, list(values[:7]), calendar), False)
    strong = [F.elu(x) for x in convolved(encoder.between[0].conv, row)]
    row = [torch.stack(strong[max(t - 1, 0) : t + 2]).amax(0) for t in range(0, 7, 2)]
    source = block(encoder.layers[1], row, False)
    future = embedded(model.asked, [*values[3:7], *torch.zeros(3, 2)], calendar[3:])
    predicted = block(model.decoder.layers[0], future, True, source)[4:]
    assert torch.allclose(model.forecast(batch)[0], torch.stack([linear(model.head, x) for x in predicted]), atol=1e-10)


def test_what_it_refuses_is_one_line() -> None:
    model = _example()
    with pytest.raises(ValueError, match="got 12 rows of 3 numbers and 2 calendar values, expected 12 rows of 2"):
        model.forecast(model.sample(1, 0, 0)._replace(values=torch.zeros(1, 12, 3)))
    with pytest.raises(NoState, match="train it with a larger horizon"):
        model.start(1, 4)
