"""SetRegressor: predicts one number for a set of vectors, independent of their order."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.autocast import linear_float32
from kinformer.core.checks import check_at_least, check_optional_part, check_part, check_probability
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.loss import Loss, sum_over_layers
from kinformer.core.memo import Memo
from kinformer.core.model import EvaluationSums, Model, sum_and_count
from kinformer.core.pooler import Pooler
from kinformer.models.support.set_answers import Answer, CountAnswer, NumberAnswer
from kinformer.nn.poolers.mean import MeanPooler

SetBatch = tuple[Float[Tensor, "B T C"], Int[Tensor, "B T"], Float[Tensor, " B"]]


class SetRegressor(Model):
    """Regressor on sets of vectors: a body without positions, a pooling, and one linear layer.

    Choose it for questions about sets: `--data sets=maximum`, `sets=unique` or `sets=FILE.npz`. A batch holds the
    elements of each set, a mark of each one (-1 for padding, which may be anywhere), and the correct answers. The loss
    is a mean over sets. Call `predict(elements, marks)` on a trained model. Elements differ only by their values, so
    their order does not change the answer.

    inputs: number of values of an element.
    d: width of the body.
    body: layers that read a set.
    answer: kind of answer to predict, such as a count; any real number by default.
    pooling: reduction of a set to one or several vectors, which are concatenated; the mean over its elements by
        default.
    decoder: layers in which the pooled vectors attend to each other.
    dropout: dropout probability of the pooled vectors.

    Errors: NoState from `start`; ValueError for a set without elements, and for a part that needs an input that no
    earlier part supplies.
    Source: Lee et al., 2018, arXiv:1810.00825, sections 3 and 5.
    """

    reads: ClassVar[str] = "sets"

    def __init__(
        self,
        inputs: int,
        d: int,
        body: Layer,
        *,
        answer: Answer | None = None,
        pooling: Pooler | None = None,
        decoder: Layer | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.inputs, self.d, self.dropout = (
            check_at_least("inputs", inputs, 1),
            check_at_least("d", d, 1),
            check_probability("dropout", dropout),
        )
        self.answer = (
            NumberAnswer()
            if answer is None
            else check_part("answer", answer, Answer, "an answer, such as NumberAnswer()")
        )
        default = MeanPooler() if pooling is None else pooling
        self.pooling = check_part("pooling", default, Pooler, "a pooler, such as MeanPooler()")
        self.embedding = nn.Linear(inputs, d)
        self.body = check_part("body", body, Layer, "a layer, such as Stack([MAB(d, heads, cross=False)])")
        self.decoder = check_optional_part("decoder", decoder, Layer, "a layer, such as MAB(d, heads, cross=False)")
        self.head = nn.Linear(self.pooling.vectors * d, 1)
        self.metric = self.answer.metric
        self.refuse_unmet(body)

    def predict(self, elements: Float[Tensor, "B T C"], marks: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
        """Return the answer to each set.

        elements: vectors of each set.
        marks: mark of each vector; -1 if it is padding and no element.
        """
        return self._read(elements, marks).y

    def forward(self, batch: SetBatch, state: State | None = None, progress: float = 0.0) -> Loss:
        """Return the loss of the predicted answers, the mean over sets."""
        elements, marks, right = _check_batch(batch)
        out = self._read(elements, marks)
        loss = self.answer.loss(out.y, right).mean()
        return Loss(loss, {"loss": loss, **sum_over_layers(out.aux, marks >= 0)}, None, out.stats, len(right))

    def judge(self, batch: SetBatch, state: State | None = None) -> EvaluationSums:
        """Return the sums of the metrics that the kind of answer defines."""
        elements, marks, right = _check_batch(batch)
        by_metric = self.answer.evaluate(self.predict(elements, marks), right)
        return EvaluationSums({name: sum_and_count(values, right == right) for name, values in by_metric.items()})

    def sample(self, rows: int, length: int, seed: int) -> SetBatch:
        """Return sets of random vectors, to test with; the first number of a set decides its answer."""
        elements = torch.randn(length, rows, self.inputs, generator=torch.Generator().manual_seed(seed)).transpose(0, 1)
        marks = torch.zeros(rows, length, dtype=torch.long)
        return elements.contiguous(), marks, self.answer.sample(elements[:, 0, 0])

    def encode(self, elements: Float[Tensor, "B T C"], marks: Int[Tensor, "B T"]) -> Out:
        """Return the body's output for each element [B T D]; reordering the elements reorders it alike.

        elements: vectors of each set.
        marks: mark of each vector; -1 if it is padding and no element.
        """
        real = marks >= 0
        return self.body(self.embedding(elements.where(real[..., None], 0.0)), None, _context(real))

    def _read(self, elements: Float[Tensor, "B T C"], marks: Int[Tensor, "B T"]) -> Out:
        out = self.encode(elements, marks)
        pooled = self.pooling(out.y, marks >= 0)
        if self.decoder is not None:
            pooled = self.decoder(pooled.unflatten(-1, (self.pooling.vectors, self.d))).y.flatten(1)
        # in float32 or better: bfloat16 cannot distinguish counts above 256
        head = linear_float32(self.head, F.dropout(pooled, self.dropout, self.training)).squeeze(-1)
        return out._replace(y=self.answer.predict(head))


def _check_batch(batch: SetBatch) -> SetBatch:
    """Return the three tensors of a batch; TypeError, in one line, for another form."""
    if not isinstance(batch, tuple | list) or len(batch) != 3:
        raise TypeError(
            f"wrong batch for a model of sets: got {type(batch).__name__}, expected (elements [B, T, C], marks [B, T], "
            "answers [B]). Call predict(elements, marks) without answers"
        )
    return batch


def _context(real: Tensor) -> Context:
    """Return a context whose positions are columns, which no part reads; refuse a set without elements."""
    memo, full = Memo(), False
    if not torch.compiler.is_compiling():
        full, filled = (bool(flag) for flag in memo.look(real.all(), real.any(1).all()))
        if not filled:
            raise ValueError("a set has no elements, so nothing can be predicted for it; leave it out")
    columns = torch.arange(real.shape[1], device=real.device)
    pos = columns.expand(len(real), -1) if full else torch.where(real, columns, -1)
    return Context(pos, full=full, memo=memo, is_clean=True)


def _example() -> SetRegressor:
    return SetRegressor(
        2,
        16,
        kf.ISAB(kf.MAB(16, 2), kf.MAB(16, 2), 3),
        pooling=kf.PMA(kf.MAB(16, 2), 2),
        decoder=kf.MAB(16, 2, cross=False),
    )


def _counts() -> SetRegressor:

    return SetRegressor(2, 16, kf.MAB(16, 2, cross=False), answer=CountAnswer())


EXAMPLES = (_example, _counts)
