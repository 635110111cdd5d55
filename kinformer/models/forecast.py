"""Forecast: the rows that follow known ones, all at once."""

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
from kinformer.core.layer import Context, Device, Dtype, Layer, State, add_prefix
from kinformer.core.loss import Loss
from kinformer.core.mechanism import NoState
from kinformer.core.model import EvaluationSums, Forecaster, sum_and_count
from kinformer.core.position import Position
from kinformer.nn.depth.distilled import Distilled

__all__ = ["Forecast"]


class Forecast(Forecaster):
    """An encoder reads the known rows of a series, a decoder answers with the rows after them, in one pass.

    The decoder reads the last `label` known rows, then a row of zeros for each row that is asked for, and what the
    encoder has made of all known rows: nothing is fed back, so a long horizon costs no more steps and no error adds up.
    Each row is embedded by a convolution over three of them, sinusoids or what `position` gives, and a linear map of
    its calendar, which is known of rows to come too. The loss is the mean squared error over rows and columns.

    channels: numbers of a row.
    targets: how many of them are forecast, the last ones; all unless given.
    encoders: what reads the known rows: the first all of them, each further one the last half of those of the one
        before; a decoder finds what they give one behind the other.
    decoder: layers of which some read the encoders by `cross=True`.
    context, label, horizon: rows that are known, that the decoder reads again, and that are forecast.
    calendar: numbers that tell when a row was, as data of dates has them; 0 for none.
    position: what is added to embedded rows.
    dropout: the share of embedded numbers that training drops.

    The convolution has zeros before the first row and behind the last, where the authors' code wraps around. The paper
    embeds each unit of a time stamp by a table of its own; here, as the code does for time features, one linear map
    does it.

    Errors: NoState from `start`; ValueError for more label than context. Source: Zhou et al., 2020, arXiv:2012.07436,
    section 3.3 and appendix B.
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
            "a forecast is given all at once and has no state; for a longer one train it with a larger horizon"
        )

    def forecast(self, batch: SeriesWindows) -> Float[Tensor, "B N M"]:
        """The targets of the rows that follow the known ones; of these rows only the calendar is read.

        Errors: ValueError for another number of rows or columns.
        """
        return self._forecast(batch)[0]

    def forward(self, batch: SeriesWindows, state: State | None = None, progress: float = 0.0) -> Loss:
        predictions, stats = self._forecast(batch)
        targets = self._targets(batch)
        error = F.mse_loss(predictions, targets)
        return Loss(error, {"nll": error}, None, stats, targets.numel())

    def judge(self, batch: SeriesWindows, state: State | None = None) -> EvaluationSums:
        """Squared and absolute errors of each number that is forecast."""
        apart = self.forecast(batch) - self._targets(batch)
        real = torch.ones_like(apart, dtype=torch.bool)
        return EvaluationSums(
            {
                self.metric.name: sum_and_count(apart.square(), real),
                "mean absolute error": sum_and_count(apart.abs(), real),
            }
        )

    def sample(self, rows: int, length: int, seed: int) -> SeriesWindows:
        """Windows of noise; each is as long as it is, whatever `length` says."""
        generator, size = torch.Generator().manual_seed(seed), self.context + self.horizon
        values = torch.randn(rows, size, self.channels, generator=generator)
        return SeriesWindows(values, torch.rand(rows, size, self.calendar, generator=generator) - 0.5)

    @property
    def _rows(self) -> list[int]:
        """How many known rows each encoder reads."""
        return [self.context >> n for n in range(len(self.encoders))]

    def _targets(self, batch: SeriesWindows) -> Float[Tensor, "B N M"]:
        return batch.values[:, self.context :, -self.targets :]

    def _forecast(self, batch: SeriesWindows) -> tuple[Float[Tensor, "B N M"], dict[str, Tensor]]:
        size, expected = list(batch.values.shape[1:]), [self.context + self.horizon, self.channels]
        if size != expected or batch.calendar.shape[2] != self.calendar:
            raise ValueError(
                f"windows of {size[0]} rows of {size[1]} numbers and {batch.calendar.shape[2]} of their calendar came; "
                f"{expected[0]} rows of {expected[1]} and {self.calendar} are wanted"
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
    """A convolution over three rows, and a linear map of the calendar."""

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
