"""Classifier: says of a text which of several kinds it is."""

from typing import Any, ClassVar, NoReturn

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import a_part, at_least
from kinformer.core.layer import Device, Dtype, Layer, Out, State
from kinformer.core.loss import Loss, gathered, weighed
from kinformer.core.mechanism import NoState
from kinformer.core.model import ACCURACY, Judged, random_tokens, total
from kinformer.core.numbering import numbered
from kinformer.models.support.encoder import Encoder
from kinformer.models.support.pooling import Mean, Pooling

Labelled = tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]


class Classifier(Encoder):
    """Tokens in, scores of the classes of their row out: a body that reads both ways, a pooling, one matrix.

    Choose it to sort texts: `labelled=FILE.tsv`. A batch is rows of tokens, padded with -1 at their ends, and the
    number of each row's class; the loss is the mean over rows, and it is judged by the share of rows that it says
    right. `scores(tokens)` asks a trained one, whose `labels` are the names of its classes.

    classes: how many there are.
    pooling: how a row becomes one vector, the mean over its tokens unless given.

    vocab, d, body, others: as those of an `Encoder`; dropout drops of pooled numbers too.

    Errors: NoState from `start`; ValueError for fewer than two classes and for a penalty that no part reports. Source:
    Devlin et al., 2018, arXiv:1810.04805, sections 3.2 and 4.1.
    """

    reads: ClassVar[str] = "labelled"
    metric = ACCURACY._replace(per="row")
    tops: ClassVar[tuple[str, ...]] = ("pooling", "head")

    def __init__(
        self, vocab: int, d: int, body: Layer, *, classes: int = 2, pooling: Pooling | None = None, **others: Any
    ):
        super().__init__(vocab, d, body, **others)
        self.classes = at_least("classes", classes, 2)
        self.pooling = Mean() if pooling is None else a_part("pooling", pooling, Pooling, "a pooling, such as Mean()")
        self.own = self.pooling.own
        self.head = nn.Linear(self.pooling.vectors * d, classes)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState("a classifier says what a whole text is and writes none; use a causal member, like gpt")

    def scores(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B classes"]:
        """The score of each class for each row."""
        return self._read(tokens).y

    def forward(self, batch: Labelled, state: State | None = None, progress: float = 1.0) -> Loss:
        """The loss of saying the classes of rows, in nats a row."""
        tokens, labels = batch
        out = self._read(tokens)
        nll, sums = F.cross_entropy(out.y, labels), gathered(out.aux, tokens >= 0)
        return Loss(weighed(nll, sums, self.penalties, progress), {"nll": nll, **sums}, None, out.stats, len(labels))

    def judge(self, batch: Labelled, state: State | None = None) -> Judged:
        """How many rows are said right."""
        tokens, labels = batch
        scores = self.scores(tokens)
        right = (scores.argmax(-1) == labels).double()
        return Judged({self.metric.name: total(right, labels >= 0)})

    def sample(self, rows: int, length: int, seed: int) -> Labelled:
        """Rows of `length` random tokens; the first of them decides the class."""
        tokens = random_tokens(self.vocab, rows, length, seed)
        return tokens, tokens[:, 0] % self.classes

    def _read(self, tokens: Int[Tensor, "B T"]) -> Out:
        rows = self.pooling.rows(tokens, mark=self.vocab)
        out = self.body(self.embedded(rows, ctx := numbered(rows)), None, ctx)
        pooled = F.dropout(self.pooling(out.y, rows >= 0), self.dropout, self.training)
        return out._replace(y=self.head(pooled))


def _example() -> Classifier:
    from kinformer.attention import Attention
    from kinformer.blocks.post_norm import PostNorm
    from kinformer.depth.stack import Stack
    from kinformer.feedforward.mlp import MLP
    from kinformer.mechanisms.softmax import Softmax
    from kinformer.patterns.full import Full
    from kinformer.positions.learned import Learned
    from kinformer.projections.qkv import QKV

    body = Stack([PostNorm(Attention(QKV(16, 2), Softmax(Full())), MLP(16))])
    return Classifier(11, 16, body, classes=3, position=Learned(16, 64))


EXAMPLES = (_example,)
