"""MultiTask: one encoder for several classification tasks; each row names its task."""

from itertools import accumulate
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_at_least, check_whole_numbers
from kinformer.core.layer import Layer, State
from kinformer.core.loss import Loss
from kinformer.core.model import EvaluationSums, random_tokens, sum_and_count
from kinformer.core.vocabulary import check_below
from kinformer.models.support.row_classifier import RowClassifier

MultiTaskBatch = tuple[Int[Tensor, "B T"], Int[Tensor, " B"], Int[Tensor, " B"]]


class MultiTask(RowClassifier):
    """Text classifier for several tasks: a shared body and pooling, and one linear layer for each task.

    Choose it if one model should learn from several sets of labelled texts: `--data multitask=FOLDER`. Choose
    `Classifier` for one task. The body gets the task of each token as the label "task", for parts such as `CAMTL`. A
    batch holds rows of tokens, padded with -1 at their ends, the task number of each row, and the class number of each
    row, counted through all tasks. One batch may mix tasks. The loss is the mean over rows. The metric is the fraction
    of rows that are classified correctly, overall and for each task. Call `scores(tokens, task)` on a trained model;
    its `labels` are the names of all classes.

    classes: number of classes of each task, each at least 2.
    vocab, d, body, kwargs: arguments of `RowClassifier`: its pooling, and the arguments of an `Encoder`.

    Errors: NoState from `start`; ValueError for no task, for fewer than two classes, and for a weight in `penalties` of
    a loss that no part reports; IndexError for an unknown task.
    Source: Pilault et al., 2020, arXiv:2009.09139, section 2.
    """

    reads: ClassVar[str] = "multitask"
    of_class: Tensor

    def __init__(self, vocab: int, d: int, body: Layer, *, classes: tuple[int, ...] = (2, 2), **kwargs: Any):
        check_at_least("the number of tasks", len(check_whole_numbers("classes", classes, 2)), 1)
        super().__init__(vocab, d, body, sum(classes), **kwargs)
        self.classes = classes
        of_class = torch.arange(len(classes)).repeat_interleave(torch.tensor(classes))
        self.register_buffer("of_class", of_class, persistent=False)  # the task of each class

    @property
    def names(self) -> list[str]:
        """Names of the tasks: from the data of a trained model, else their numbers."""
        firsts = [0, *accumulate(self.classes)][:-1]
        return [str(n) if self.labels is None else self.labels[at].split(": ")[0] for n, at in enumerate(firsts)]

    def scores(self, tokens: Int[Tensor, "B T"], task: Int[Tensor, " B"]) -> Float[Tensor, "B classes"]:
        """Return the score of each class for each row; classes of other tasks get -inf.

        tokens: rows of tokens, padded with -1 at their ends.
        task: task number of each row.
        """
        return self._mask_other_tasks(self.read(tokens, {"task": task}).y, task)

    def forward(self, batch: MultiTaskBatch, state: State | None = None, progress: float = 0.0) -> Loss:
        """Return the cross-entropy of the classes, in nats per row."""
        tokens, task, targets = batch
        out = self.read(tokens, {"task": task})
        return self.class_loss(out._replace(y=self._mask_other_tasks(out.y, task)), tokens, targets, progress)

    def judge(self, batch: MultiTaskBatch, state: State | None = None) -> EvaluationSums:
        """Return the number of rows that are classified correctly, overall and for each task."""
        tokens, task, targets = batch
        right = (self.scores(tokens, task).argmax(-1) == targets).double()
        each = {f"{self.metric.name} of {name}": sum_and_count(right, task == n) for n, name in enumerate(self.names)}
        return EvaluationSums({self.metric.name: sum_and_count(right, targets >= 0), **each})

    def sample(self, rows: int, length: int, seed: int) -> MultiTaskBatch:
        """Return rows of random tokens, to test with; the first token of a row decides its task and class."""
        tokens = random_tokens(self.vocab, rows, length, seed)
        targets = tokens[:, 0] % len(self.of_class)
        return tokens, self.of_class.cpu()[targets], targets

    def _mask_other_tasks(self, y: Float[Tensor, "B classes"], task: Int[Tensor, " B"]) -> Float[Tensor, "B classes"]:
        check_below(task, len(self.classes), "task", "give MultiTask classes= with more tasks")
        return y.masked_fill(self.of_class != task[:, None], -torch.inf)


def _example() -> MultiTask:
    attention = kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full(), kf.CAMTL(2, 16, 64, 8)))
    return MultiTask(
        11, 16, kf.Stack([kf.PostNorm(attention, kf.MLP(16))]), classes=(3, 2), position=kf.Learned(16, 64)
    )


EXAMPLES = (_example,)
