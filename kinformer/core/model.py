"""Model: the base class of everything that can be trained, with its loss and its evaluation."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.batch import SeriesWindows
from kinformer.core.collected_outputs import is_sent
from kinformer.core.did_you_mean import ADVICE, MODEL_ADVICE
from kinformer.core.keyword_hints import KeywordHints, hint_keywords
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.loss import Loss
from kinformer.core.mechanism import NoState
from kinformer.core.position import Position

CALL_KEYWORDS = tuple(  # of a call as models of transformers take it
    "input_ids attention_mask token_type_ids global_attention_mask labels decoder_input_ids decoder_attention_mask "
    "past_key_values use_cache output_hidden_states output_attentions return_dict".split()
)
Batch = Any  # a batch from a file of data/: a tensor of tokens, a pair of tensors, tokens and labels


class Metric(NamedTuple):
    """The description of a measure of a model's quality, such as accuracy.

    name: the name of the measure.
    unit: the unit of the measure; "" for none.
    better: "less" if smaller values are better, otherwise "more".
    per: the items over which the measure is a mean: tokens, rows or bytes.
    """

    name: str
    unit: str
    better: Literal["less", "more"] = "less"
    per: Literal["token", "row", "byte"] = "token"


LEAST_TEMPERATURE = torch.finfo(torch.float32).tiny  # below it, it or its reciprocal leaves float32's range
ACCURACY = Metric("accuracy", "", better="more")  # the metric of every task, for any model


class EvaluationSums(NamedTuple):
    """The result of `Model.judge`: sums and counts of each metric, and the model's state after the batch.

    Sums and counts are additive over batches.

    totals: sum and count of each metric by name, the model's main metric first.
    state: the model's state after the batch, or None.
    scored: for text, True at the tokens over which the metric is a mean. The metric bits per byte divides by the number
        of bytes of these tokens. None if a model that predicts the next token scores every token except the first of a
        row.
    """

    totals: Mapping[str, tuple[Tensor, Tensor]]
    state: State | None = None
    scored: Bool[Tensor, "B T"] | None = None


class ColumnScales(NamedTuple):
    """The columns (channels) of the time series that a model was trained on, in order.

    names: names of the columns.
    mean, deviation: means and standard deviations of the columns.
    """

    names: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


class Model(nn.Module, KeywordHints, ABC):
    """Base class of models: a body (a stack of layers) between an input and a loss.

    Training, evaluation, comparison and the laws (tested properties) use only this interface and know no model by name.
    A subclass writes `forward`, `judge` and `sample`. The fields from `trained_length` to `columns` are saved in the
    model's folder.

    reads: the kind of training data, named by the file in `lab/data` that provides the batches.
    metric: the first metric of `judge`, given by the class or by the training data, such as ACCURACY of a task.
    predicts_next: True if the model learns to predict the next step. It must then have a state and must not read ahead.
    lanes: True to train on consecutive text: each row of a batch continues the same row of the previous batch, with its
        state.
    trained_length: the longest row of the training; None before training.
    trained_on: the name of the training data; None before training.
    tokenizer: the tokenizer of the training data; None for bytes.
    foreign_ends: the ids that end a text, for a model of another library without a tokenizer, which reads no texts;
        None for all other models.
    headless: True if the weights have no head, so that the logits mean nothing.
    labels: names of the classes that the model predicts; None if there are none.
    columns: names and scales of the series' columns; None without a series.
    folder: the folder that the model was loaded from; None for other models.
    own: the number of tokens, such as a class token, that the model adds to a row.
    tops: names of modules, such as the head, that are not kept if another class of model takes over the trained body.

    For rows longer than `window` tokens, `generate` and every measurement use a sliding window of at most that length.
    """

    reads: ClassVar[str]
    metric: Metric
    predicts_next: ClassVar[bool] = False
    lanes: bool = False
    trained_length: int | None = None
    trained_on: str | None = None
    tokenizer: Any = None
    foreign_ends: tuple[int, ...] | None = None
    headless: bool = False
    labels: tuple[str, ...] | None = None
    columns: ColumnScales | None = None
    folder: Path | None = None
    own: int = 0
    tops: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("forward", "logits", "scores") if cls.__module__.startswith("kinformer.") else ():
            if inspect.isfunction(method := vars(cls).get(name)):
                setattr(cls, name, hint_keywords(method))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the loss of a batch; or, for keywords of transformers such as `input_ids`, its output with logits.

        `lab/as_transformers.py` describes the second form. Its token ids may also come first: `model(ids, labels=ids)`.
        """
        if keywords and not keywords.keys().isdisjoint(CALL_KEYWORDS):
            from kinformer.lab.as_transformers import call

            return call(self, arguments, keywords)
        return super().__call__(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if (advice := MODEL_ADVICE.get(name) or ADVICE.get(name)) is None:
                raise
            raise AttributeError(f"{error}; {advice}", name=name, obj=self) from None

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Write the model for `from_pretrained` of transformers, as `kf.save` does with format="hf".

        folder: folder to write.
        options: options of `HubModel.save_pretrained`, such as push_to_hub=True.
        """
        from kinformer.bridge.hub_model import HubModel

        HubModel(self).save_pretrained(folder, **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model to the Hugging Face Hub, in the form of `save_pretrained`, and return its address.

        repo_id: name of the repository on the Hub, as ORG/NAME.
        options: options of `PyTorchModelHubMixin.push_to_hub`, such as private=True.

        Errors: the errors of `save_pretrained`; OSError, in one line, if the Hub cannot be reached.
        """
        from kinformer.bridge.hub_model import HubModel

        return str(HubModel(self).push_to_hub(repo_id, **options))

    def open_files(self) -> None:
        """Open the files of `folder` that the model reads beside its weights, if any.

        A datastore is such a file.
        """
        return

    def write_files(self, folder: Path) -> None:
        """Write these files into the folder that the model is saved in."""
        return

    @property
    def longest(self) -> int | None:
        """The largest length of a row that the model's learned positions allow; None if it has no such table."""
        ends = [part.length for part in self.modules() if isinstance(part, Position) and part.length is not None]
        return min(ends) - self.own if ends else None

    @property
    def is_pretrained(self) -> bool:
        """True for weights that another library trained, and that no training here has changed."""
        return self.trained_length is not None and self.trained_on is None

    @property
    def window(self) -> int | None:
        """The number of the model's learned positions that were trained; None if it has no such table.

        Training on rows shorter than the table reaches only its first positions. Before training, all positions count.
        """
        longest = self.longest
        return None if longest is None else min(longest, self.trained_length or longest)

    @abstractmethod
    def forward(self, batch: Batch, state: State | None = None, progress: float = 0.0) -> Loss:
        """Return the loss of a batch; `progress` is the finished fraction of the training, from 0 to 1.

        The default 0 is the start of a training, where every auxiliary loss has its full weight. A loop that passes no
        progress therefore trains all parts. Only a loss that fades needs the progress.
        """

    @abstractmethod
    def judge(self, batch: Batch, state: State | None = None) -> EvaluationSums:
        """Return the sums over the batch that its metrics need, computed without random numbers."""

    @abstractmethod
    def sample(self, rows: int, length: int, seed: int) -> Batch:
        """Return a batch of random data, for tests; it depends only on the arguments.

        A longer row begins with the same data as a shorter row from the same seed.
        """

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        """Return the decoding state before the first token of rows of up to `length` tokens.

        Its dtype and device are taken from the model unless given.

        Errors: NoState if the model reads whole rows only.
        """
        raise NoState(f"this {type(self).__name__} reads a whole row at once and has no state; use it without one")

    def refuse_unmet(self, body: Layer, sends: tuple[str, ...] = ()) -> None:
        """Check that the model provides each value that its body needs (`body.wants`).

        body: the stack of layers. Values that one of its blocks passes to a later one are not in `body.wants`.
        sends: names of the values that the model provides.

        Errors: ValueError if a value that is not optional is missing.
        """
        for want in body.wants:
            if not want.optional and not is_sent(want.name, sends):
                raise ValueError(
                    f"a part of {type(body).__name__} needs {want.name!r} from an earlier block, but no earlier block "
                    "sends it; add a block that sends it, or remove the part"
                )


class Predictor(Model):
    """Base class of models that predict each next step of a sequence from the steps before it.

    A subclass writes `inputs` and `predict`. Training checks that such a model does not use later steps.
    """

    predicts_next: ClassVar[bool] = True

    @abstractmethod
    def inputs(self, batch: Batch) -> tuple[Int[Tensor, "B T *n"], Mapping[str, Tensor]]:
        """Return the steps of a batch in order, and further inputs for `predict` by name."""

    @abstractmethod
    def predict(self, steps: Int[Tensor, "B T *n"], **inputs: Any) -> Float[Tensor, "B T K"]:
        """Return the prediction at each step for the step after it."""


class Forecaster(Model):
    """Base class of models that forecast the next `horizon` rows of a series from `context` known rows.

    context: the number of known rows.
    horizon: the number of rows to forecast.
    channels: the number of values in a row, one row for each time step.
    calendar: the number of calendar values of a row.
    targets: the number of values to forecast, the last ones of a row.
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
        """Return the predicted target values of the N rows after the known ones.

        From the forecast rows of the batch, only the calendar is used.
        """


class Writer(Predictor):
    """Base class of models that can continue a text; `generate` requires it."""

    @abstractmethod
    def logits(
        self, tokens: Int[Tensor, "B T"], state: State | None = None, ctx: Context | None = None, *, last: bool = False
    ) -> Out:
        """Return scores (logits) of the token after each token; with `last`, only after the last one [B 1 V]."""

    def generate(self, *arguments: Any, **keywords: Any) -> Int[Tensor, "B N"]:
        """Continue rows of tokens, with the arguments of transformers.

        `kf.generate` has all options.
        `decoding/generate_method.py` describes the arguments.
        """
        from kinformer.decoding.generate_method import generate

        return generate(self, *arguments, **keywords)

    def inputs(self, batch: Batch) -> tuple[Int[Tensor, "B _"], Mapping[str, Tensor]]:
        """Return the tokens of a batch in order, and further inputs for `predict` by name."""
        return batch, {}

    def predict(self, steps: Int[Tensor, "B T"], **inputs: Any) -> Float[Tensor, "B T V"]:
        """Return scores (logits) of the token after each token."""
        return self.logits(steps, **inputs).y


def random_tokens(vocab: int, rows: int, length: int, seed: int) -> Int[Tensor, "B T"]:
    """Return random token ids [rows, length], for tests; they depend only on the arguments.

    A longer row begins with the same tokens as a shorter row from the same seed.

    vocab: the number of different tokens.
    rows, length: the shape of the result.
    seed: the seed of the random numbers.
    """
    tokens = torch.randint(vocab, (length, rows), generator=torch.Generator().manual_seed(seed))
    return tokens.T.contiguous()


def accuracy(logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the numbers of correctly predicted tokens, and of rows with only correct predictions.

    The prediction is the token with the largest score.

    logits: scores, [B T V].
    targets: the correct tokens; -1 at tokens that do not count.

    Returns: sum and count of each of the two metrics, by its name.
    """
    real = targets >= 0
    right = logits.argmax(-1) == targets
    return {
        ACCURACY.name: sum_and_count(right.double(), real),
        "rows all right": sum_and_count((right | ~real).all(1).double(), real.any(1)),
    }


def sum_and_count(values: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum, in float64, of the values at which `real` is True, and their number.

    values: the values.
    real: True at the values that count.
    """
    return values.detach().where(real, 0.0).to(torch.float64).sum(), real.sum()


def display_name(model: nn.Module) -> str:
    """Return the name of a model for users: the member (named system) that made it, or else its class."""
    record = getattr(model, "member", None)
    return getattr(record, "name", None) or type(model).__name__
