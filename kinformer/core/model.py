"""Model: what can be trained: it reads batches of one kind of data, says its loss, and judges itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.batch import SeriesWindows
from kinformer.core.collected_outputs import is_sent
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.loss import Loss
from kinformer.core.mechanism import NoState
from kinformer.core.position import Position

Batch = Any  # what a file of data/ gives: a tensor of tokens, a pair of them, tokens and labels


class Metric(NamedTuple):
    """What a model is judged by: a name, its unit, whether less or more is better, and what it is a mean over."""

    name: str
    unit: str
    better: Literal["less", "more"] = "less"
    per: Literal["token", "row", "byte"] = "token"


LEAST_TEMPERATURE = torch.finfo(torch.float32).tiny  # a smaller one, or its reciprocal, leaves the range of float32
ACCURACY = Metric("accuracy", "", better="more")  # what a task is judged by, whoever solves it


class EvaluationSums(NamedTuple):
    """What `judge` returns: sums and counts of each metric, additive over batches, and the state after the batch.

    totals: sum and count by name, the model's metric first.
    scored: for text, True at the tokens that the metric is a mean over; bits per byte divide by the bytes of these
        tokens. None if a model that predicts the next token scores every token but the first of a row.
    """

    totals: Mapping[str, tuple[Tensor, Tensor]]
    state: State | None = None
    scored: Bool[Tensor, "B T"] | None = None


class ColumnScales(NamedTuple):
    """Names, means and standard deviations of the columns of the series that a model was trained on, in order."""

    names: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


class Model(nn.Module, ABC):
    """A body between an input and a loss. Training, evaluation, comparison and the laws know no model by name.

    `reads` names the file of `data/` whose batches it takes. `metric` is the first of what `judge` returns: what its
    class says, or what the data of its training says, such as ACCURACY of a task. `predicts_next` says that it learns
    what comes next: then it must have a state and must not read ahead. `lanes` asks for consecutive text, its state
    carried from batch to batch. `trained_length` is the longest row of its training and `trained_on` names the data,
    both None before any, `tokenizer` what made its tokens, None where they are bytes, and `labels` the names of the
    classes that it says, if any; `columns` are the names and scales of the series of its training, None where it read
    none. All are kept in its folder. `own` is how many tokens it adds to a row, and `tops`
    names the modules that another kind of model over the same body has others for. Beyond `window`, `generate` and
    every measurement slide.
    """

    reads: ClassVar[str]
    metric: Metric
    predicts_next: ClassVar[bool] = False
    lanes: bool = False
    trained_length: int | None = None
    trained_on: str | None = None
    tokenizer: Any = None
    labels: tuple[str, ...] | None = None
    columns: ColumnScales | None = None
    own: int = 0
    tops: ClassVar[tuple[str, ...]] = ()

    @property
    def longest(self) -> int | None:
        """How long rows may be, by its learned positions; None where there is no table of them."""
        ends = [part.length for part in self.modules() if isinstance(part, Position) and part.length is not None]
        return min(ends) - self.own if ends else None

    @property
    def window(self) -> int | None:
        """How many learned positions there are, none that training has not reached; None where there is no table."""
        longest = self.longest
        return None if longest is None else min(longest, self.trained_length or longest)

    @abstractmethod
    def forward(self, batch: Batch, state: State | None = None, progress: float = 0.0) -> Loss:
        """The loss of a batch; `progress` is the finished fraction of the training, from 0 to 1.

        The default 0 is the start of a training, where every auxiliary loss has its full weight. So a loop that passes
        no progress trains all parts. Only a loss that fades needs the progress.
        """

    @abstractmethod
    def judge(self, batch: Batch, state: State | None = None) -> EvaluationSums:
        """Sums over the batch by which the model is measured; no chance in them."""

    @abstractmethod
    def sample(self, rows: int, length: int, seed: int) -> Batch:
        """A batch of random data, the same for the same seed; longer rows begin as shorter ones do."""

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        """The state before the first token of rows of up to `length`; in the model's own precision unless told."""
        raise NoState(f"this {type(self).__name__} reads a whole row at once and has no state; use it without one")

    def refuse_unmet(self, body: Layer, sends: tuple[str, ...] = ()) -> None:
        """ValueError where a part of the body wants from below what nothing beneath it and not the model sends."""
        for want in body.wants:
            if not want.optional and not is_sent(want.name, sends):
                raise ValueError(
                    f"a part of {type(body).__name__} wants {want.name!r} from below, and no block beneath it sends "
                    "that; let a block beneath send it, or take the part out"
                )


class Predictor(Model):
    """A model that learns what comes next, step after step: what a training tries for reading ahead."""

    predicts_next: ClassVar[bool] = True

    @abstractmethod
    def inputs(self, batch: Batch) -> tuple[Int[Tensor, "B T *n"], Mapping[str, Tensor]]:
        """The steps of a batch that are read one after the other, and what else the model is given by name."""

    @abstractmethod
    def predict(self, steps: Int[Tensor, "B T *n"], **inputs: Any) -> Float[Tensor, "B T K"]:
        """What it says at each step, of what it says next."""


class Forecaster(Model):
    """A model that says which rows of a series follow known ones: `horizon` of them, from `context`.

    `channels` and `calendar` are how many numbers a row has, and how many tell when it was; the last `targets` of a
    row's numbers are what it forecasts.
    """

    reads: ClassVar[str] = "series"
    metric = Metric("mean squared error", "")
    context: int
    horizon: int
    channels: int
    calendar: int
    targets: int

    @abstractmethod
    def forecast(self, batch: SeriesWindows) -> Float[Tensor, "B N M"]:
        """The targets of the rows that follow the known ones; of these rows only the calendar is read."""


class Writer(Predictor):
    """A model that can go on with a text: what `generate` needs."""

    @abstractmethod
    def logits(
        self, tokens: Int[Tensor, "B T"], state: State | None = None, ctx: Context | None = None, *, last: bool = False
    ) -> Out:
        """Scores of the token after each token, or with `last` after the last one alone [B 1 V]."""

    def inputs(self, batch: Batch) -> tuple[Int[Tensor, "B _"], Mapping[str, Tensor]]:
        """The tokens of a batch that `logits` reads one after the other, and what else it is given by name."""
        return batch, {}

    def predict(self, steps: Int[Tensor, "B T"], **inputs: Any) -> Float[Tensor, "B T V"]:
        """Scores of the token after each token."""
        return self.logits(steps, **inputs).y


def random_tokens(vocab: int, rows: int, length: int, seed: int) -> Int[Tensor, "B T"]:
    """Random tokens, the same for the same seed; longer rows begin as shorter ones do."""
    tokens = torch.randint(vocab, (length, rows), generator=torch.Generator().manual_seed(seed))
    return tokens.T.contiguous()


def accuracy(logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> dict[str, tuple[Tensor, Tensor]]:
    """The answers (where not -1) that the largest scores give: how many are right, and of how many rows all are."""
    real = targets >= 0
    right = logits.argmax(-1) == targets
    return {
        ACCURACY.name: sum_and_count(right.double(), real),
        "rows all right": sum_and_count((right | ~real).all(1).double(), real.any(1)),
    }


def sum_and_count(values: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of real values in float64, and how many there are."""
    return values.detach().where(real, 0.0).to(torch.float64).sum(), real.sum()


def display_name(model: nn.Module) -> str:
    """What a user calls a model: the member that made it, or its class where none did."""
    record = getattr(model, "member", None)
    return getattr(record, "name", None) or type(model).__name__
