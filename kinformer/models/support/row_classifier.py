"""RowClassifier: base class of models that classify whole rows: encoder, pooling and head."""

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_part
from kinformer.core.layer import Device, Dtype, Layer, Out
from kinformer.core.loss import Loss, sum_over_layers, weighted_loss
from kinformer.core.mechanism import NoState
from kinformer.core.model import ACCURACY
from kinformer.core.pooler import Pooler
from kinformer.core.token_positions import context_of_tokens
from kinformer.core.vocabulary import check_below, check_token_rows
from kinformer.models.support.row_encoder import Encoder
from kinformer.nn.poolers.mean import MeanPooler


class RowClassifier(Encoder):
    """Base class of classifiers of token rows: body, pooling and a linear head of `outputs` classes.

    vocab, d, body, kwargs: arguments of `Encoder`; dropout also applies to the pooled vectors.
    outputs: number of classes.
    pooling: reduction of a row to a vector; the mean over its tokens by default.

    Errors: NoState from `start`.
    """

    metric = ACCURACY._replace(per="row")
    tops: ClassVar[tuple[str, ...]] = ("pooling", "head")

    def __init__(self, vocab: int, d: int, body: Layer, outputs: int, *, pooling: Pooler | None = None, **kwargs: Any):
        super().__init__(vocab, d, body, **kwargs)
        self.pooling = (
            MeanPooler()
            if pooling is None
            else check_part("pooling", pooling, Pooler, "a pooler, such as MeanPooler()")
        )
        self.own = self.pooling.own
        self.head = nn.Linear(self.pooling.vectors * d, outputs)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState("a classifier labels whole texts and cannot generate text; use a causal member, like gpt")

    def read(self, tokens: Int[Tensor, "B T"], labels: Mapping[str, Int[Tensor, " B"]] | None = None) -> Out:
        """Return the class scores of each row.

        tokens: rows of tokens, padded with -1 at their ends.
        labels: an integer for each row, by name of the label, such as its task. Each token of a row gets the row's
            integer.
        """
        rows = self.pooling.rows(check_token_rows(tokens), mark=self.vocab)
        of_tokens = {name: label[:, None].expand(rows.shape) for name, label in (labels or {}).items()}
        ctx = context_of_tokens(rows).replace(labels=of_tokens)
        out = self.body(self.embed_tokens(rows, ctx), None, ctx)
        pooled = F.dropout(self.pooling(out.y, rows >= 0), self.dropout, self.training)
        return out._replace(y=self.head(pooled))

    def class_loss(self, out: Out, tokens: Int[Tensor, "B T"], targets: Int[Tensor, " B"], progress: float) -> Loss:
        """Return the cross-entropy of the classes, in nats per row.

        out: class scores, the result of `read`.
        tokens: rows of tokens.
        targets: class of each row.
        progress: progress of the training, from 0 to 1.

        Errors: IndexError for a class that the model does not have.
        """
        check_below(targets, out.y.shape[-1], "class", "make classes larger")
        nll, sums = F.cross_entropy(out.y, targets.long()), sum_over_layers(out.aux, tokens >= 0)
        return Loss(
            weighted_loss(nll, sums, self.penalties, progress), {"nll": nll, **sums}, None, out.stats, len(targets)
        )
