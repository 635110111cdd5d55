"""The smallest models that keep the contract of a language model, for the tests of what stands around models."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kinformer.core.discover import member
from kinformer.core.layer import Out
from kinformer.core.loss import Loss
from kinformer.core.model import EvaluationSums, Metric, Model, Writer, random_tokens, sum_and_count
from kinformer.lab.data.text import TextData


class Bigram(Writer):
    """Knows the byte before; its head is its embedding, times a matrix."""

    reads: ClassVar[str] = "text"
    metric = Metric("bits per byte", "bits")

    def __init__(self, d: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, d)
        self.mix = nn.Linear(d, d)
        self.head = nn.Linear(d, 256, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.told: list[tuple[float, dict[str, Tensor]]] = []
        self.states: list[Any] = []

    def start(self, batch: int, length: int, *, dtype: Any = None, device: Any = None) -> Tensor:
        return torch.zeros(batch, self.mix.in_features, dtype=dtype or self.mix.weight.dtype, device=device)

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
        x = self.mix(self.embedding(tokens.clamp_min(0)))
        return Out(self.head(x[:, -1:] if last else x), None if state is None else x[:, -1])

    def forward(self, tokens: Tensor, state: Any = None, progress: float = 0.0) -> Loss:
        self.states.append(state)
        out = self.logits(tokens[:, :-1], state)
        nll = cross_entropy(out.y.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=-1)
        return Loss(nll, {"nll": nll}, out.state, {"count": torch.tensor(tokens.numel())}, tokens[:, 1:].numel())

    def judge(self, batch: Tensor, state: Any = None) -> EvaluationSums:
        out, targets = self.logits(batch[:, :-1], state), batch[:, 1:]
        nats = cross_entropy(out.y.transpose(1, 2), targets, ignore_index=-1, reduction="none")
        return EvaluationSums({"bits per byte": sum_and_count(nats / math.log(2), targets >= 0)}, out.state)

    def sample(self, rows: int, length: int, seed: int) -> Tensor:
        return random_tokens(256, rows, length, seed)

    def after_step(self, progress: float, stats: dict[str, Tensor]) -> None:
        self.seen += 1
        self.told.append((progress, stats))


class Lane(Bigram):
    """Adds what it carries to every step, so that a wrong state shows in its loss."""

    lanes = True

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
        state = self.start(len(tokens), 0) if state is None else state
        x = torch.cat([state[:, None], self.mix(self.embedding(tokens.clamp_min(0)))], dim=1).cumsum(1)[:, 1:]
        return Out(self.head(x[:, -1:] if last else x), x[:, -1])


class Classifier(Model):
    """Says which letter a row has most of: one answer a row, from the mean of its embedded bytes."""

    reads: ClassVar[str] = "labelled"
    metric = Metric("accuracy", "share", better="more", per="row")

    def __init__(self, d: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(256, d), nn.Linear(d, 3)

    def answers(self, rows: Tensor) -> Tensor:
        return self.head(self.embedding(rows.clamp_min(0)).where(rows[..., None] >= 0, 0.0).mean(1))

    def forward(self, batch: tuple[Tensor, Tensor], state: Any = None, progress: float = 0.0) -> Loss:
        rows, labels = batch
        loss = cross_entropy(self.answers(rows), labels)
        return Loss(loss, {"nll": loss}, count=len(labels))

    def judge(self, batch: tuple[Tensor, Tensor], state: Any = None) -> EvaluationSums:
        rows, labels = batch
        return EvaluationSums(
            {"accuracy": sum_and_count((self.answers(rows).argmax(-1) == labels).double(), labels >= 0)}
        )

    def sample(self, rows: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
        tokens = random_tokens(3, rows, length, seed)
        return tokens + 97, torch.nn.functional.one_hot(tokens, 3).sum(1).argmax(-1)


@member
def bigram(d: int = 8) -> Bigram:
    """A bigram model."""
    return Bigram(d)


@member
def lane(d: int = 8) -> Lane:
    """A model that carries a state."""
    return Lane(d)


@member
def classifier(d: int = 8) -> Classifier:
    """A model of labelled rows."""
    return Classifier(d)


def cycle(letters: bytes, count: int) -> Tensor:
    """Letters over and over: `count` bytes of text."""
    return torch.tensor(list(letters * (count // len(letters) + 1))[:count], dtype=torch.uint8)


def text(count: int = 2000) -> TextData:
    """A text that a bigram model can learn by heart."""
    return TextData("cycle", cycle(b"abcdefgh", count), cycle(b"abcdefgh", 200), cycle(b"abcdefgh", 200))
