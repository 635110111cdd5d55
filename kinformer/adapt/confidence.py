"""Confidences: how sure a token is of its state, which CALM compares with a threshold to leave early."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class Confidence(nn.Module, ABC):
    """How sure each token is after the last of the layers that it has been through."""

    @abstractmethod
    def forward(self, states: Sequence[Float[Tensor, "*shape D"]]) -> Float[Tensor, "*shape"]: ...


class SoftmaxResponse(Confidence):
    """The gap between the two largest probabilities that `head` gives: the best of CALM's three, and the dearest.

    `head` is what maps a state to logits, final norm included. Source: Schuster et al., 2022, arXiv:2207.07061, 3.5.
    """

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]]) -> Float[Tensor, "*shape"]:
        best = self.head(states[-1]).softmax(-1).topk(2).values
        return best[..., 0] - best[..., 1]


class Saturation(Confidence):
    """The cosine of a state and the one a layer before; needs no weights. After the first layer nobody is: -inf.

    Source: Schuster et al., 2022, arXiv:2207.07061, section 3.5.
    """

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]]) -> Float[Tensor, "*shape"]:
        if len(states) < 2:
            return torch.full_like(states[-1][..., 0], -torch.inf)
        return F.cosine_similarity(states[-1], states[-2], dim=-1)


class Probe(Confidence):
    """sigmoid(w.h + b), one w for all layers, trained to tell whether a layer predicts what the last one will.

    A probe with two outputs and a softmax is the same with the differences of its columns. Source: Schuster et al.,
    2022, arXiv:2207.07061, section 3.5.
    """

    def __init__(self, d: int, *, bias: bool = True):
        super().__init__()
        self.unit = nn.Linear(d, 1, bias=bias)

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]]) -> Float[Tensor, "*shape"]:
        return self.unit(states[-1])[..., 0].sigmoid()
