"""Forecast: predicts the next rows of a time series in one pass."""

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.batch import SeriesWindows
from kinformer.core.checks import (
    check_at_least,
    check_optional_part,
    check_part,
    check_probability,
    check_whole_between,
)
from kinformer.core.layer import Context, Device, Dtype, Layer, State
from kinformer.core.loss import Loss
from kinformer.core.mechanism import NoState
from kinformer.core.model import EvaluationSums, Forecaster, sum_and_count
from kinformer.core.position import Position
from kinformer.core.sublayer_names import add_prefix
from kinformer.nn.depth.distilled import Distilled

__all__ = ["Forecast"]


class Forecast(Forecaster):
    """Encoder-decoder that forecasts the next rows of a time series in one pass.

    Choose it for long horizons: no prediction is fed back, so a longer horizon needs no further steps and no error
    accumulates. The encoders read the known rows. The decoder reads the last `label` known rows, a row of zeros for
    each row to forecast, and the encoders' output. The embedding of a row is the sum of a convolution over three rows,
    its `position`, and a linear map of its calendar, which is also known for future rows. The loss is the mean squared
    error over the rows and columns (series) to forecast.

    channels: number of values in a row.
    encoders: stacks of layers that read the known rows. The first reads all of them; each further one reads the last
        half of the rows that the one before reads. The decoder reads their outputs, concatenated along the sequence.
    decoder: stack of layers; layers with `cross=True` read the output of the encoders.
    context: number of known rows.
    label: number of the last known rows that the decoder reads again.
    horizon: number of rows to forecast.
    calendar: number of values that encode the date and time of a row; 0 if the data has no dates.
    targets: number of columns to forecast, the last ones of a row; all by default.
    position: position that is added to embedded rows, such as `Sinusoidal`.
    dropout: dropout probability of the embedded rows.

    Errors: NoState from `start`; ValueError if `label` exceeds `context`.
    Source: Zhou et al., 2020, arXiv:2012.07436, section 3.3 and appendix B.

    Differences: The convolution pads with zeros before the first row and after the last, while the authors' code wraps
    around. The paper embeds each unit of a time stamp by a table of its own; one linear map does it here, as in the
    authors' code for time features.
    """

    def __init__(
        self,
        channels: int,
        encoders: Iterable[Distilled],
        decoder: Layer,
        *,
        context: int = 96,
        label: int = 48,
        horizon: int = 24,
        calendar: int = 0,
        targets: int | None = None,
        position: Position | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.channels, self.calendar = check_at_least("channels", channels, 1), check_at_least("calendar", calendar, 0)
        self.targets = channels if targets is None else check_whole_between("targets", targets, 1, channels)
        self.context, self.horizon = check_at_least("context", context, 1), check_at_least("horizon", horizon, 1)
        self.label = check_whole_between("label", label, 0, context)
        self.encoders = nn.ModuleList(encoders)
        check_at_least("encoders", len(self.encoders), 1), check_at_least("rows of the last encoder", self._rows[-1], 1)
        self.decoder = check_part("decoder", decoder, Layer, "a layer, such as Stack([...])")
        self.position = check_optional_part("position", position, Position, "a position, such as Sinusoidal(d)")
        self.dropout = check_probability("dropout", dropout)
        self.known, self.asked = (RowEmbedding(channels, calendar, decoder.d) for _ in range(2))
        self.head = nn.Linear(decoder.d, self.targets)
        self.refuse_unmet(decoder)
        for encoder in self.encoders:
            for layer in encoder.layers:
                self.refuse_unmet(layer)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState(
            "a forecast is computed in one pass and has no state; for a longer one, train it with a larger horizon"
        )

    def forecast(self, batch: SeriesWindows) -> Float[Tensor, "B N M"]:
        """Return the forecast of the target columns; of the future rows the model reads only the calendar.

        batch: windows of `context` + `horizon` rows.

        Errors: ValueError for windows with another number of rows or columns.
        """
        return self._forecast(batch)[0]

    def forward(self, batch: SeriesWindows, state: State | None = None, progress: float = 0.0) -> Loss:
        predictions, stats = self._forecast(batch)
        targets = self._targets(batch)
        error = F.mse_loss(predictions, targets)
        return Loss(error, {"nll": error}, None, stats, targets.numel())

    def judge(self, batch: SeriesWindows, state: State | None = None) -> EvaluationSums:
        """Return the sums of squared and absolute errors over all forecast numbers."""
        apart = self.forecast(batch) - self._targets(batch)
        real = torch.ones_like(apart, dtype=torch.bool)
        return EvaluationSums(
            {
                self.metric.name: sum_and_count(apart.square(), real),
                "mean absolute error": sum_and_count(apart.abs(), real),
            }
        )

    def sample(self, rows: int, length: int, seed: int) -> SeriesWindows:
        """Return windows of random numbers, to test with; the model sets their size, so `length` is ignored."""
        generator, size = torch.Generator().manual_seed(seed), self.context + self.horizon
        values = torch.randn(rows, size, self.channels, generator=generator)
        return SeriesWindows(values, torch.rand(rows, size, self.calendar, generator=generator) - 0.5)

    @property
    def _rows(self) -> list[int]:
        """Number of known rows that each encoder reads."""
        return [self.context >> n for n in range(len(self.encoders))]

    def _targets(self, batch: SeriesWindows) -> Float[Tensor, "B N M"]:
        return batch.values[:, self.context :, -self.targets :]

    def _forecast(self, batch: SeriesWindows) -> tuple[Float[Tensor, "B N M"], dict[str, Tensor]]:
        size, expected = list(batch.values.shape[1:]), [self.context + self.horizon, self.channels]
        if size != expected or batch.calendar.shape[2] != self.calendar:
            raise ValueError(
                f"windows have the wrong shape: got {size[0]} rows of {size[1]} numbers and {batch.calendar.shape[2]} "
                f"calendar values, expected {expected[0]} rows of {expected[1]} and {self.calendar}"
            )
        values, calendar = batch.values[:, : self.context], batch.calendar
        stats: dict[str, Tensor] = {}
        encoded = []
        x, ctx = self._embed(self.known, values, calendar[:, : self.context])
        for n, (encoder, rows) in enumerate(zip(self.encoders, self._rows, strict=True)):
            y, _, encoder_stats = encoder(x[:, -rows:], Context.of_sequence(x[:, -rows:]) if n else ctx)
            encoded.append(y)
            stats |= add_prefix(f"encoders.{n}", encoder_stats)
        source = torch.cat(encoded, 1)
        begin = self.context - self.label
        x, ctx = self._embed(self.asked, F.pad(values[:, begin:], (0, 0, 0, self.horizon)), calendar[:, begin:])
        decoder_ctx = ctx.replace(source=source, source_pos=Context.of_sequence(source).pos, full=ctx.full)
        out = self.decoder(x, None, decoder_ctx)
        ctx.memo.settle()
        stats |= add_prefix("decoder", out.stats)
        return self.head(out.y[:, self.label :]), stats

    def _embed(
        self, embed: "RowEmbedding", values: Float[Tensor, "B T C"], calendar: Float[Tensor, "B T F"]
    ) -> tuple[Float[Tensor, "B T D"], Context]:
        ctx, x = Context.of_sequence(values), embed(values, calendar)
        x = x if self.position is None else x + self.position(ctx.pos)
        return F.dropout(x, self.dropout, self.training), ctx


class RowEmbedding(nn.Module):
    """Embedding of the rows of a series: a convolution over three rows plus a linear map of the calendar.

    channels: number of values in a row.
    calendar: number of calendar values; 0 for none.
    d: width of the embedding.
    """

    def __init__(self, channels: int, calendar: int, d: int):
        super().__init__()
        self.values = nn.Conv1d(channels, d, 3, padding=1)
        self.calendar = nn.Linear(calendar, d, bias=False) if calendar else None

    def forward(self, values: Float[Tensor, "B T C"], calendar: Float[Tensor, "B T F"]) -> Float[Tensor, "B T D"]:
        x = self.values(values.mT).mT
        return x if self.calendar is None else x + self.calendar(calendar)


def _example(targets: int | None = None) -> Forecast:
    def layer() -> kf.PostNorm:
        return kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.ProbSparse(factor=1)))

    itself, source = kf.ProbSparse(causal=True, factor=1), kf.Softmax(kf.Full())
    decoder = kf.PostNorm(kf.Attention(kf.QKV(16, 2), itself), kf.Attention(kf.QKV(16, 2), source, cross=True))
    encoders = [Distilled([layer(), layer()]), Distilled([layer()])]
    sizes: dict[str, Any] = {"context": 9, "label": 4, "horizon": 3, "calendar": 2, "targets": targets}
    return Forecast(2, encoders, decoder, position=kf.Sinusoidal(16), **sizes)


EXAMPLES = (_example,)
