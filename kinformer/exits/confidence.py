"""Confidences: how sure a token is of its state, which CALM compares with a threshold to leave early."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import at_least
from kinformer.core.read import precise

Head = Callable[[Tensor], Tensor]  # a state to logits: the exit's norm and the head that the model lends


class Confidence(nn.Module, ABC):
    """How sure each token is after the last of the layers that it has been through, in float32 or better.

    In bfloat16 two confidences near 1 are the same number, and tokens would leave that should not.
    """

    @abstractmethod
    def forward(
        self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None
    ) -> Float[Tensor, "*shape"]: ...


class SoftmaxResponse(Confidence):
    """The gap between the two largest probabilities: the best of CALM's three, and the dearest.

    head: what maps a state to logits, final norm included; the model's own, which it lends, unless given.

    Errors: ValueError where no head was given and none is lent. Source: Schuster et al., 2022, arXiv:2207.07061, 3.5.
    """

    def __init__(self, head: nn.Module | None = None):
        super().__init__()
        self.head = head

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        read = self.head or head
        if read is None:
            raise ValueError("SoftmaxResponse has no head and no model lends one; give SoftmaxResponse(head)")
        best = precise(read(states[-1])).softmax(-1).topk(2).values
        return best[..., 0] - best[..., 1]


class Saturation(Confidence):
    """The cosine of a state and the one a layer before; needs no weights. After the first layer nobody is: -inf.

    Source: Schuster et al., 2022, arXiv:2207.07061, section 3.5.
    """

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        if len(states) < 2:
            return torch.full_like(precise(states[-1][..., 0]), -torch.inf)
        return F.cosine_similarity(precise(states[-1]), precise(states[-2]), dim=-1)


class Probe(Confidence):
    """sigmoid(w.h + b), one w for all layers, trained to tell whether a layer predicts what the last one will.

    A probe with two outputs and a softmax is the same with the differences of its columns.

    d: the width of a state.
    bias: whether there is a b.

    Source: Schuster et al., 2022, arXiv:2207.07061, section 3.5.
    """

    def __init__(self, d: int, *, bias: bool = True):
        super().__init__()
        self.unit = nn.Linear(at_least("d", d, 1), 1, bias=bias)

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        return linear(self.unit, states[-1])[..., 0].sigmoid()


def linear(unit: nn.Linear, state: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape N"]:
    """What a unit makes of a state, computed in float32 or better, under autocast too."""
    bias = None if unit.bias is None else precise(unit.bias)
    with torch.autocast(state.device.type, enabled=False):
        return F.linear(precise(state), precise(unit.weight), bias)
