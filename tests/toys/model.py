"""Classifier: one answer per row."""

from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.layer import Layer, State
from kinformer.core.loss import Loss, sum_over_layers
from kinformer.core.model import EvaluationSums, Metric, Model, random_tokens, sum_and_count
from kinformer.core.token_positions import context_of_tokens

Labelled = tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]


class Classifier(Model):
    """Tokens in, the class of their row out: what a body makes of real tokens, averaged, then one matrix."""

    reads: ClassVar[str] = "labelled"
    metric = Metric("accuracy", "", "more", "row")

    def __init__(self, vocab: int, classes: int, body: Layer):
        super().__init__()
        self.vocab, self.classes, self.body = vocab, classes, body
        self.embedding, self.head = nn.Embedding(vocab, body.d), nn.Linear(body.d, classes)
        self.refuse_unmet(body)

    def forward(self, batch: Labelled, state: State | None = None, progress: float = 0.0) -> Loss:
        scores, sums = self._scores(batch[0])
        nll = F.cross_entropy(scores, batch[1])
        return Loss(nll, {"nll": nll, **sums}, count=len(batch[1]))

    def judge(self, batch: Labelled, state: State | None = None) -> EvaluationSums:
        scores, _ = self._scores(batch[0])
        right = (scores.argmax(-1) == batch[1]).double()
        return EvaluationSums({self.metric.name: sum_and_count(right, torch.ones_like(right, dtype=torch.bool))})

    def sample(self, rows: int, length: int, seed: int) -> Labelled:
        tokens = random_tokens(self.vocab, rows, length, seed)
        return tokens, tokens[:, 0] % self.classes

    def _scores(self, tokens: Int[Tensor, "B T"]) -> tuple[Tensor, dict[str, Tensor]]:
        ctx, real = context_of_tokens(tokens), tokens >= 0
        out = self.body(self.embedding(tokens.clamp_min(0)), None, ctx)
        mean = out.y.where(real[..., None], 0.0).sum(1) / real.sum(1, keepdim=True).clamp_min(1)
        return self.head(mean), sum_over_layers(out.aux, real)


def _example() -> Classifier:
    from kinformer.core.patterns.full import Full
    from kinformer.nn.attention import Attention
    from kinformer.nn.blocks.pre_norm import PreNorm
    from kinformer.nn.mechanisms.softmax import Softmax
    from kinformer.nn.projections.qkv import QKV

    return Classifier(11, 3, PreNorm(Attention(QKV(16, 2), Softmax(Full()))))


EXAMPLES = (_example,)
