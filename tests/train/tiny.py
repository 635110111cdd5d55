"""The smallest models that keep the contract of a language model, for the tests of what stands around models."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kinformer.core.layer import Out
from kinformer.core.loss import Loss
from kinformer.data.text import Text
from kinformer.discover import member


class Bigram(nn.Module):
    """Knows the byte before; its head is its embedding, times a matrix."""

    recurrent = False

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
        return torch.zeros(batch, self.mix.in_features, dtype=dtype, device=device)

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None) -> Out:
        x = self.mix(self.embedding(tokens))
        return Out(self.head(x), None if state is None else x[:, -1])

    def forward(self, tokens: Tensor, state: Any = None, progress: float = 1.0) -> Loss:
        self.states.append(state)
        out = self.logits(tokens[:, :-1], state)
        nll = cross_entropy(out.y.flatten(0, 1), tokens[:, 1:].flatten())
        return Loss(nll, {"nll": nll}, out.state, {"count": torch.tensor(tokens.numel())})

    def after_step(self, progress: float, stats: dict[str, Tensor]) -> None:
        self.seen += 1
        self.told.append((progress, stats))


class Lane(Bigram):
    """Adds what it carries to every step, so that a wrong state shows in its loss."""

    recurrent = True

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None) -> Out:
        x = torch.cat([state[:, None], self.mix(self.embedding(tokens))], dim=1).cumsum(1)[:, 1:]
        return Out(self.head(x), x[:, -1])


@member
def bigram(d: int = 8) -> Bigram:
    """A bigram model."""
    return Bigram(d)


@member
def lane(d: int = 8) -> Lane:
    """A model that carries a state."""
    return Lane(d)


def cycle(letters: bytes, count: int) -> Tensor:
    """Letters over and over: `count` bytes of text."""
    return torch.tensor(list(letters * (count // len(letters) + 1))[:count], dtype=torch.uint8)


def text(count: int = 2000) -> Text:
    """A text that a bigram model can learn by heart."""
    return Text("cycle", cycle(b"abcdefgh", count), cycle(b"abcdefgh", 200), cycle(b"abcdefgh", 200))
