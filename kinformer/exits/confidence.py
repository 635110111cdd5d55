"""Confidences: how sure a token is of its state, which CALM compares with a threshold to leave early."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from kinformer.core.autocast import linear, precise
from kinformer.core.checks import a_flag, at_least

States = Sequence[Float[Tensor, "B T D"]]  # of the layers so far, the last one at the end
Logits = Sequence[Float[Tensor, "B T V"]]  # likewise
Head = Callable[[Tensor], Tensor]  # a state to logits: the exit's norm and the head that the model lends


class Confidence(nn.Module, ABC):
    """How sure each token is after the last of the layers that it has been through, in float32 or better.

    In bfloat16 two confidences near 1 are the same number, and tokens would leave that should not.
    """

    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)  # of what it says, and so of thresholds
    joins: ClassVar[bool] = False  # whether layers that were trained without it may be given it

    def agree(self, d: int) -> None:
        """ValueError unless it reads states of width d."""

    def grid(self, count: int) -> list[float]:
        """So many thresholds from the top of its range down, of which calibration chooses."""
        low, high = self.range
        return evenly(high, low, count)

    @abstractmethod
    def forward(
        self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None
    ) -> Float[Tensor, "*shape"]: ...

    def loss(self, states: States, logits: Logits, wanted: Int[Tensor, "B T"]) -> Float[Tensor, "B T"] | None:
        """What it learns by from the states and logits of all layers, per token; None where there is nothing to."""
        return None


class SoftmaxResponse(Confidence):
    """The gap between the two largest probabilities: the best of CALM's three, and the dearest.

    head: what maps a state to logits, final norm included; the model's own, which it lends, unless given.

    Errors: ValueError where no head was given and none is lent. Source: Schuster et al., 2022, arXiv:2207.07061, 3.5.
    """

    range = (0.0, 1.0)

    def __init__(self, head: nn.Module | None = None):
        super().__init__()
        self.head = head

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        best = _probabilities(self, states[-1], head)
        best = best.topk(min(2, best.shape[-1])).values
        return best[..., 0] - best[..., 1:].sum(-1)  # of one token alone, which nothing rivals: 1


class SoftmaxProbability(Confidence):
    """The largest probability, with a threshold for each layer: confidence thresholding.

    head: what maps a state to logits, as of `SoftmaxResponse`.

    Errors: ValueError where no head was given and none is lent. Source: Elbayad et al., 2019, arXiv:1910.10073, 3.2.
    """

    range = (0.0, 1.0)

    def __init__(self, head: nn.Module | None = None):
        super().__init__()
        self.head = head

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        return _probabilities(self, states[-1], head).amax(-1)


class Saturation(Confidence):
    """The cosine of a state and the one a layer before; needs no weights. After the first layer nobody is: -inf.

    Source: Schuster et al., 2022, arXiv:2207.07061, section 3.5.
    """

    range = (-1.0, 1.0)

    def grid(self, count: int) -> list[float]:
        """Evenly by the angle, up to a right one: neighbours are alike, so what tells them apart is near 1."""
        return [math.cos(angle) for angle in evenly(0.0, math.pi / 2, count)]

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        if len(states) < 2:
            return torch.full_like(precise(states[-1][..., 0]), -torch.inf)
        return F.cosine_similarity(precise(states[-1]), precise(states[-2]), dim=-1)


class Probe(Confidence):
    """sigmoid(w.h + b), one w for all layers: does this layer predict what the last one will?

    It learns by the binary cross-entropy of each layer but the last, their mean, and no gradient reaches the
    backbone, which the paper freezes first. A probe with two outputs and a softmax is the same with the differences of
    its columns.

    d: the width of a state.
    bias: whether there is a b.
    balance: of a layer weigh the tokens that agree by the share of those that do not, and the others by the rest, as
        the authors' code can; the paper weighs all alike.

    Source: Schuster et al., 2022, arXiv:2207.07061, section 3.5.
    """

    range, joins = (0.0, 1.0), True

    def __init__(self, d: int, *, bias: bool = True, balance: bool = False):
        super().__init__()
        self.unit, self.balance = nn.Linear(at_least("d", d, 1), 1, bias=bias), a_flag("balance", balance)

    def agree(self, d: int) -> None:
        if self.unit.in_features != d:
            raise ValueError(f"Probe({self.unit.in_features}) came for states of width {d}; give Probe({d})")

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        return linear(self.unit, states[-1])[..., 0].sigmoid()

    def loss(self, states: States, logits: Logits, wanted: Int[Tensor, "B T"]) -> Float[Tensor, "B T"] | None:
        if len(states) < 2:
            return None
        said = torch.stack([linear(self.unit, h.detach())[..., 0] for h in states[:-1]])  # [N-1 B T]
        last = logits[-1].argmax(-1)
        agrees = torch.stack([one.argmax(-1) == last for one in logits[:-1]])
        found = F.binary_cross_entropy_with_logits(said, agrees.to(said.dtype), reduction="none")
        if self.balance:
            real = wanted >= 0
            share = (agrees & real).sum((1, 2)) / real.sum().clamp_min(1)
            share = share[:, None, None].to(found.dtype)
            found = found * torch.where(agrees, 1 - share, share)
        return found.mean(0)


def _probabilities(
    asking: SoftmaxResponse | SoftmaxProbability, state: Float[Tensor, "*shape D"], lent: Head | None
) -> Float[Tensor, "*shape V"]:
    name, read = type(asking).__name__, asking.head or lent
    if read is None:
        raise ValueError(f"{name} has no head and no model lends one; give {name}(head)")
    logits = exactly(read, state) if isinstance(read, nn.Module) else read(state)
    return precise(logits).softmax(-1)


def exactly(module: nn.Module, x: Tensor) -> Tensor:
    """What a module makes of x, computed in float32 or better, under autocast too.

    Logits rounded to bfloat16 would move a confidence near 1 by more than thresholds there differ.
    """
    given = precise(x)
    low = any(weight.dtype != given.dtype for weight in module.parameters() if weight.is_floating_point())
    if not low and not torch.is_autocast_enabled(x.device.type):
        return module(given)
    weights = {name: precise(weight) for name, weight in module.named_parameters() if weight.is_floating_point()}
    with torch.autocast(x.device.type, enabled=False):
        return functional_call(module, weights, (given,)) if low else module(given)


def evenly(first: float, last: float, count: int) -> list[float]:
    """So many numbers from the first to the last, all as far apart."""
    steps = at_least("thresholds", count, 2) - 1
    return [first + (last - first) * n / steps for n in range(steps)] + [last]
