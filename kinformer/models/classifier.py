"""Classifier: predicts the class of a whole text."""

from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_at_least
from kinformer.core.layer import Layer, State
from kinformer.core.loss import Loss
from kinformer.core.model import EvaluationSums, random_tokens, sum_and_count
from kinformer.models.support.row_classifier import RowClassifier

LabelledBatch = tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]


class Classifier(RowClassifier):
    """Text classifier: a bidirectional body, a pooling, and one linear layer that scores the classes.

    Choose it to sort texts into classes; `--data labelled=FILE.tsv` supplies texts with their classes. A batch holds
    rows of tokens, padded with -1 at their ends, and the class number of each row. The loss is the mean over rows, and
    the metric is the fraction of rows that are classified correctly. Call `scores(tokens)` on a trained model; its
    `labels` are the names of its classes.

    classes: number of classes, at least 2.
    vocab, d, body, kwargs: arguments of `RowClassifier`: its pooling, and the arguments of an `Encoder`.

    Errors: NoState from `start`; ValueError for fewer than two classes and for a weight in `penalties` of a loss that
    no part reports.
    Source: Devlin et al., 2018, arXiv:1810.04805, sections 3.2 and 4.1.
    """

    reads: ClassVar[str] = "labelled"

    def __init__(self, vocab: int, d: int, body: Layer, *, classes: int = 2, **kwargs: Any):
        super().__init__(vocab, d, body, check_at_least("classes", classes, 2), **kwargs)
        self.classes = classes

    def scores(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B classes"]:
        """Return the score of each class for each row."""
        return self.read(tokens).y

    def forward(self, batch: LabelledBatch, state: State | None = None, progress: float = 0.0) -> Loss:
        """Return the cross-entropy of the classes, in nats per row."""
        tokens, labels = _tokens_and_labels(batch)
        return self.class_loss(self.read(tokens), tokens, labels, progress)

    def judge(self, batch: LabelledBatch, state: State | None = None) -> EvaluationSums:
        """Return the number of rows that are classified correctly, and the number of rows."""
        tokens, labels = _tokens_and_labels(batch)
        scores = self.scores(tokens)
        right = (scores.argmax(-1) == labels).double()
        return EvaluationSums({self.metric.name: sum_and_count(right, labels >= 0)})

    def sample(self, rows: int, length: int, seed: int) -> LabelledBatch:
        """Return rows of random tokens, to test the model with; the first token of a row decides its class."""
        tokens = random_tokens(self.vocab, rows, length, seed)
        return tokens, tokens[:, 0] % self.classes


def _tokens_and_labels(batch: Any) -> LabelledBatch:
    """Return the two tensors of a batch; TypeError, in one line, for another form."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(
            f"wrong batch for a classifier: got {type(batch).__name__}, expected one tuple of tokens [B, T] "
            "and labels [B]: model((tokens, labels)). Call scores(tokens) without labels; fit also takes a dict of "
            "input_ids and labels"
        )
    return batch[0], batch[1]


def _example() -> Classifier:
    body = kf.Stack([kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full())), kf.MLP(16))])
    return Classifier(11, 16, body, classes=3, position=kf.Learned(16, 64))


EXAMPLES = (_example,)
