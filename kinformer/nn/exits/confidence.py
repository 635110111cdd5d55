"""Confidences: scores of how sure a token's prediction is; a token leaves early at a threshold."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32, linear_float32
from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.loss import LEAVING, Penalty

States = Sequence[Float[Tensor, "B T D"]]  # one state per layer so far, in order
Logits = Sequence[Float[Tensor, "B T V"]]  # one set of logits per layer, in order
DECAY = 0.9  # decay of the running share of tokens that agree
Head = Callable[[Tensor], Tensor]  # maps a state to logits: the exit's norm, then the model's head


class Confidence(nn.Module, KeywordHints, ABC):
    """The base class of confidences: scores of how sure each token's prediction is so far.

    Subclasses implement `forward`. Early exits (CALM) compare a confidence with a threshold. Confidences are computed
    in float32 or better. In bfloat16 two confidences near 1 round to the same number, and tokens would leave too early.
    """

    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)  # range of the confidence and its thresholds
    joins: ClassVar[bool] = False  # True if it may be added to layers trained without it

    def check_sizes(self, d: int) -> None:
        """Raise ValueError if the confidence is not made for hidden states of width d."""

    def grid(self, count: int) -> list[float]:
        """Return `count` exit thresholds for calibration to try, evenly spaced from the highest down."""
        low, high = self.range
        return evenly_spaced(high, low, count)

    @abstractmethod
    def forward(
        self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None
    ) -> Float[Tensor, "*shape"]: ...

    def loss(self, states: States, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"] | None:
        """Return the loss per token that trains the confidence; None if it has nothing to learn.

        states: hidden states after each layer.
        logits: logits of each layer.
        targets: token ids, [B T]; -1 for no target.
        """
        return None

    def stats(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Mapping[str, Tensor]:
        """Return the sums over a training batch that `after_step` needs.

        If a batch is cut into pieces, the sums of the pieces are added.
        """
        return {}


class _HeadConfidence(Confidence):
    """A confidence that reads the probabilities of its own head or of the model's head."""

    range = (0.0, 1.0)

    def __init__(self, head: nn.Module | None = None):
        super().__init__()
        self.head = head

    def _probabilities(self, state: Float[Tensor, "*shape D"], lent: Head | None) -> Float[Tensor, "*shape V"]:
        name, read = type(self).__name__, self.head or lent
        if read is None:
            raise ValueError(f"{name} has no head, and no model provides one. Pass a head: {name}(head)")
        logits = apply_in_float32(read, state) if isinstance(read, nn.Module) else read(state)
        return at_least_float32(logits).softmax(-1)


class SoftmaxResponse(_HeadConfidence):
    """A confidence: the difference between the two largest probabilities of a head.

    Choose it first: in the paper it gives the largest speed-up of CALM's three confidences. It computes logits after
    every layer. Choose `Saturation` or `Probe` for less work per layer.

    head: module that maps a state to logits, with the final norm; default the model's own head.

    Errors: ValueError if no head was given and the model provides none.
    Source: Schuster et al., 2022, arXiv:2207.07061, 3.5.
    """

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        best = self._probabilities(states[-1], head)
        best = best.topk(min(2, best.shape[-1])).values
        return best[..., 0] - best[..., 1:].sum(-1)  # 1 for a vocabulary of one token


class SoftmaxProbability(_HeadConfidence):
    """A confidence: the largest probability of a head, Elbayad's confidence thresholding.

    Choose it to repeat Elbayad et al., who use a threshold for each layer. Like `SoftmaxResponse` it computes logits at
    every layer.

    head: module that maps a state to logits, as in `SoftmaxResponse`.

    Errors: ValueError if no head was given and the model provides none.
    Source: Elbayad et al., 2019, arXiv:1910.10073, 3.2.
    """

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        return self._probabilities(states[-1], head).amax(-1)


class Saturation(Confidence):
    """A confidence: the cosine similarity of a token's hidden states after the last two layers computed.

    Choose it if the rule must have no weights. After the first layer the confidence is -inf, so no token leaves there.

    Source: Schuster et al., 2022, arXiv:2207.07061, section 3.5.
    """

    range = (-1.0, 1.0)

    def grid(self, count: int) -> list[float]:
        """Return `count` exit thresholds for calibration, spaced evenly by angle from 0 to 90 degrees.

        States of neighbouring layers are similar, so the useful thresholds lie near 1.
        """
        return [math.cos(angle) for angle in evenly_spaced(0.0, math.pi / 2, count)]

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        if len(states) < 2:
            return torch.full_like(at_least_float32(states[-1][..., 0]), -torch.inf)
        similarity = F.cosine_similarity(at_least_float32(states[-1]), at_least_float32(states[-2]), dim=-1)
        return similarity.clamp(-1, 1)  # rounding exceeds 1, and then tokens would leave at a threshold of 1


class Probe(Confidence):
    """A confidence: a linear probe that predicts whether a layer's prediction equals the last layer's.

        sigmoid(w.h + b)

    Here h is the hidden state after a layer; all layers share w and b. Choose it if logits at every layer are too slow
    and there is data to train the probe. The loss is the mean of the binary cross-entropies of all layers except the
    last. No gradient of this loss reaches the other weights of the model, which the paper freezes first. The gradient
    of the probe is clipped separately, so the other weights learn as without a probe. A probe with two outputs and a
    softmax is equivalent; w and b are then the differences of its columns.

    d: width of a hidden state.
    bias: whether the probe has a bias b.
    balance: if True, weigh tokens for which a layer predicts the same as the last layer by 1 - s, and the others by s,
        as in the authors' code. Here s is the fraction of tokens with the same prediction. The paper weighs all tokens
        equally.
    depth: number of layers; required with `balance`.

    Errors: ValueError for `balance` without `depth`, for hidden states of another width, and for another number of
    layers.
    Source: Schuster et al., 2022, arXiv:2207.07061, section 3.5; `balance`: t5x/contrib/calm/models.py.

    Differences: the authors take s from the batch. In this library s is a running mean over earlier steps (decay 0.9,
    1/2 at the start), so that a batch can be cut into pieces or shared between processes. A custom training loop
    updates s by `train.after_step`.
    """

    range, joins = (0.0, 1.0), True
    share: Float[Tensor, " N"] | None
    steps: Int[Tensor, ""] | None

    def __init__(self, d: int, *, bias: bool = True, balance: bool = False, depth: int | None = None):
        super().__init__()
        self.unit, self.balance = nn.Linear(check_at_least("d", d, 1), 1, bias=bias), check_flag("balance", balance)
        if balance and depth is None:
            raise ValueError(
                "balance=True needs the number of layers: got depth=None, expected at least 1. Pass depth="
            )
        layers = 0 if depth is None else check_at_least("depth", depth, 1) - 1
        self.register_buffer("share", torch.full((layers,), 0.5) if balance else None)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long) if balance else None)

    def check_sizes(self, d: int) -> None:
        if self.unit.in_features != d:
            n = self.unit.in_features
            raise ValueError(f"Probe({n}) does not fit the states: got width {d}, expected {n}. Pass Probe({d})")

    def upgrade(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Add the initial fractions s to the tensors of a checkpoint of an earlier version, which has none."""
        if f"{prefix}unit.weight" in tensors:
            for name, value in (("share", self.share), ("steps", self.steps)):
                if value is not None:
                    tensors.setdefault(f"{prefix}{name}", value.clone())

    def penalties(self) -> dict[str, Penalty]:
        """Declare the probe's loss, which trains only the probe: no other loss depends on the probe."""
        parameters = tuple(p for p in self.unit.parameters() if p.requires_grad)
        return {LEAVING: Penalty(parameters, alone=True, by="alpha")} if parameters else {}

    def forward(self, states: Sequence[Float[Tensor, "*shape D"]], head: Head | None = None) -> Float[Tensor, "*shape"]:
        return linear_float32(self.unit, states[-1])[..., 0].sigmoid()

    def loss(self, states: States, logits: Logits, targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"] | None:
        if len(states) < 2:
            return None
        agreement = torch.stack([linear_float32(self.unit, h.detach())[..., 0] for h in states[:-1]])  # [N-1 B T]
        agrees = _agrees(logits)
        losses = F.binary_cross_entropy_with_logits(agreement, agrees.to(agreement.dtype), reduction="none")
        if self.share is not None:
            if len(self.share) != len(losses):
                depth, layers = len(self.share) + 1, len(states)
                raise ValueError(
                    f"Probe(depth={depth}) does not fit the model: got {layers} layers, expected {depth}. Pass "
                    f"depth={layers}"
                )
            share = self.share[:, None, None].to(losses.dtype)
            losses = losses * torch.where(agrees, 1 - share, share)
        return losses.mean(0)

    @torch.no_grad()
    def stats(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Mapping[str, Tensor]:
        """Count the targets for which each layer but the last predicts the same as the last, then all targets."""
        if self.share is None or len(logits) < 2:
            return {}
        real = targets >= 0
        return {"agreeing": torch.cat([(_agrees(logits) & real).sum((1, 2)), real.sum()[None]])}

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Update the running mean s with the fractions of one training step."""
        if "agreeing" not in stats or self.share is None or self.steps is None or not stats["agreeing"][-1]:
            return
        *agreeing, count = stats["agreeing"]
        share = (torch.stack(agreeing) / count).to(self.share.dtype)
        self.share.copy_(torch.where(self.steps > 0, DECAY * self.share + (1 - DECAY) * share, share))
        self.steps += 1


def _agrees(logits: Logits) -> Bool[Tensor, "N B T"]:
    """Return for each layer except the last whether it predicts the same token as the last layer."""
    last = logits[-1].argmax(-1)
    return torch.stack([scores.argmax(-1) == last for scores in logits[:-1]])


def apply_in_float32(module: nn.Module, x: Tensor) -> Tensor:
    """Apply a module to x in float32 or better, also under autocast.

    In bfloat16, rounding would move a confidence near 1 by more than the difference of two thresholds.

    module: the module to apply; low-precision weights are converted for the call.
    x: its input, of any shape the module accepts.
    """
    wide = at_least_float32(x)
    low = any(weight.dtype != wide.dtype for weight in module.parameters() if weight.is_floating_point())
    if not low and not torch.is_autocast_enabled(x.device.type):
        return module(wide)
    weights = {
        name: at_least_float32(weight) for name, weight in module.named_parameters() if weight.is_floating_point()
    }
    with torch.autocast(x.device.type, enabled=False):
        return functional_call(module, weights, (wide,)) if low else module(wide)


def evenly_spaced(first: float, last: float, count: int) -> list[float]:
    """Return `count` evenly spaced numbers from `first` to `last`.

    Errors: ValueError for a count below 2.
    """
    steps = check_at_least("thresholds", count, 2) - 1
    return [first + (last - first) * n / steps for n in range(steps)] + [last]
