"""Exit rules: which tokens leave a stack after a layer, by what a classifier or a confidence says."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32, linear_float32
from kinformer.core.checks import check_at_least, check_flag, check_part
from kinformer.core.choice import choice
from kinformer.core.layer import Context, State, add_prefix
from kinformer.core.patterns.document import Document
from kinformer.nn.exits.confidence import Confidence, Head, Logits, States, evenly_spaced
from kinformer.nn.exits.decaying_threshold import DecayingThreshold, Threshold, checked_threshold, of_layer
from kinformer.nn.losses.exit_oracles import ExitOracle, Likelihood

Leaves = Bool[Tensor, "B T"]


class Rule(nn.Module, ABC):
    """Which tokens leave after a layer, decided in float32 or better.

    `states` holds what each layer so far made, the last one's last; `head` maps a state to logits, where a model lends
    its own. `ctx` is the layers' context: a rule that counts tokens asks it for `steps` or `position_ids`: positions
    also count a prompt and the documents before. A rule that needs something from outside keeps it from call to call:
    `start` and `begin_call`. One with a threshold says by `strict` whether that must be exceeded or only reached.
    """

    strict: bool = True

    def agree(self, d: int, depth: int) -> None:
        """ValueError unless the rule is made for `depth` layers of width d."""

    def compute_confidence(self, states: States, head: Head | None = None) -> Float[Tensor, "B T"]:
        """What is held against the threshold after the last of these layers; ValueError where there is none."""
        raise ValueError(f"{type(self).__name__} leaves by no threshold; give a rule that does, such as Geometric")

    def grid(self, count: int) -> list[Threshold]:
        """So many thresholds, the most careful first, of which calibration chooses; ValueError where it has none."""
        raise ValueError(f"{type(self).__name__} leaves by no threshold, so there is none to calibrate")

    def leave_at(self, threshold: Threshold) -> None:
        """Decide by this threshold from now on; ValueError where it has none, or none such."""
        raise ValueError(f"{type(self).__name__} leaves by no threshold, and {threshold} came")

    def held_against(
        self, threshold: Float[Tensor, "*#n"], steps: Int[Tensor, "*#n"], max_new_tokens: int | None
    ) -> Float[Tensor, "*#n"]:
        """The numbers that tokens at these steps are held against by a threshold: itself, unless it falls."""
        return threshold

    def start(self, batch: int, *, device: torch.device | None = None) -> State:
        """What the rule keeps from call to call."""
        return ()

    def begin_call(self, state: State, ctx: Context) -> State:
        """The same with what this call brings from outside."""
        return state

    @abstractmethod
    def forward(self, states: States, ctx: Context, rule_state: State = (), head: Head | None = None) -> Leaves: ...

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        """What the rule learns by, per token, from the states and logits of all exits with nobody having left.

        `ctx` is that of the layers, for what learns by a source.
        """
        return None

    def stats(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Mapping[str, Tensor]:
        """Sums of a training batch for `after_step` of the rule's parts, by the name of each part."""
        return {}


class ConfidenceThreshold(Rule):
    """A token leaves once its confidence reaches the threshold.

    confidence: how sure it is: `SoftmaxResponse()`, `Saturation()` or `Probe(d)`.
    threshold: a number that the confidence can reach, one for each layer but the last, or one that falls while an
        output grows: `DecayingThreshold(0.9, 512)`.
    strict: leave only once the confidence exceeds the threshold, as public code does; the paper says at least.

    Errors: ValueError for a threshold outside the confidence's range. Source: Schuster et al., 2022, arXiv:2207.07061,
    section 3.
    """

    def __init__(self, confidence: Confidence, threshold: Threshold | DecayingThreshold, *, strict: bool = False):
        super().__init__()
        self.confidence = check_part("confidence", confidence, Confidence, "one, such as Saturation()")
        self.strict = check_flag("strict", strict)
        checked_threshold(
            threshold.threshold if isinstance(threshold, DecayingThreshold) else threshold, *confidence.range
        )
        self.threshold = threshold

    def agree(self, d: int, depth: int) -> None:
        self.confidence.agree(d)
        _check_threshold_count(self.threshold, depth)

    def compute_confidence(self, states: States, head: Head | None = None) -> Float[Tensor, "B T"]:
        return self.confidence(states, head)

    def grid(self, count: int) -> list[Threshold]:
        return list(self.confidence.grid(count))

    def leave_at(self, threshold: Threshold) -> None:
        """Decide by this threshold from now on; one that falls goes on falling, from and to other numbers."""
        checked_threshold(threshold, *self.confidence.range)
        own = self.threshold
        self.threshold = replace(own, threshold=threshold) if isinstance(own, DecayingThreshold) else threshold

    def held_against(
        self, threshold: Float[Tensor, "*#n"], steps: Int[Tensor, "*#n"], max_new_tokens: int | None
    ) -> Float[Tensor, "*#n"]:
        own = self.threshold
        return own.decay(threshold, steps, max_new_tokens) if isinstance(own, DecayingThreshold) else threshold

    def forward(self, states: States, ctx: Context, rule_state: State = (), head: Head | None = None) -> Leaves:
        sure = self.compute_confidence(states, head)
        own = self.threshold
        if isinstance(own, DecayingThreshold):
            threshold: float | Tensor = own(ctx.steps, ctx.max_new_tokens, layer=len(states))
        else:
            threshold = of_layer(own, len(states))
        return sure > threshold if self.strict else sure >= threshold

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        return self.confidence.loss(states, logits, targets)

    def stats(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Mapping[str, Tensor]:
        return add_prefix("confidence", self.confidence.stats(logits, targets))


class Multinomial(Rule):
    """Each token's exit is the likeliest of softmax(W h + b) of its state after the first layer.

    It learns by -log q of the exit that its oracle names.

    d: the width of a state.
    depth: how many layers there are.
    oracle: at which exit a token had better left: `Likelihood()` unless given, or `Correctness()`.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 3.2.
    """

    def __init__(self, d: int, depth: int, *, oracle: ExitOracle | None = None):
        super().__init__()
        self.oracle = oracle or Likelihood()
        self.choice = nn.Linear(check_at_least("d", d, 1), check_at_least("depth", depth, 1))

    def agree(self, d: int, depth: int) -> None:
        _check_made_for(self, self.choice.in_features, self.choice.out_features, d, depth)

    def log_q(self, states: Sequence[Float[Tensor, "B T D"]]) -> Float[Tensor, "B T N"]:
        """Log-probabilities of the exits, to train by."""
        return linear_float32(self.choice, states[0]).log_softmax(-1)

    def forward(self, states: States, ctx: Context, rule_state: State = (), head: Head | None = None) -> Leaves:
        return linear_float32(self.choice, states[0]).argmax(-1) < len(states)

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        return _exit_loss(self.log_q(states), self.oracle(logits, targets, _documents(ctx)))


class Geometric(Rule):
    """After each layer a token stops if sigmoid(w.h + b) exceeds the threshold.

    q(n) is the product of stopping at n and not before; it learns by -log q of the exit that its oracle names.

    d: the width of a state.
    depth: how many layers there are.
    threshold: the probability above which it stops: a number, or one for each layer but the last.
    shared: one w and b for all layers as in the paper, or one each.
    oracle: at which exit a token had better left: `Likelihood()` unless given, or `Correctness()`.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 3.2.
    """

    def __init__(
        self, d: int, depth: int, *, threshold: Threshold = 0.5, shared: bool = True, oracle: ExitOracle | None = None
    ):
        super().__init__()
        self.oracle = oracle or Likelihood()
        self.threshold = checked_threshold(threshold, 0, 1)
        self.d, self.depth, self.shared = (
            check_at_least("d", d, 1),
            check_at_least("depth", depth, 1),
            check_flag("shared", shared),
        )
        self.stop = nn.ModuleList(nn.Linear(d, 1) for _ in range(1 if shared else depth - 1))

    def agree(self, d: int, depth: int) -> None:
        _check_made_for(self, self.d, self.depth, d, depth)
        _check_threshold_count(self.threshold, depth)

    def grid(self, count: int) -> list[Threshold]:
        return list(evenly_spaced(1.0, 0.0, count))

    def leave_at(self, threshold: Threshold) -> None:
        self.threshold = checked_threshold(threshold, 0, 1)

    def _logit(self, states: Sequence[Float[Tensor, "B T D"]], n: int) -> Float[Tensor, "B T"]:
        unit = self.stop[0 if self.shared else n]
        assert isinstance(unit, nn.Linear)
        return linear_float32(unit, states[n])[..., 0]

    def log_q(self, states: Sequence[Float[Tensor, "B T D"]]) -> Float[Tensor, "B T N"]:
        """Log-probabilities of the exits, to train by: stop at n and not before; the last layer takes the rest."""
        if len(states) == 1:
            return torch.zeros_like(at_least_float32(states[0][..., :1]))
        logits = torch.stack([self._logit(states, n) for n in range(len(states) - 1)], -1)
        stay = F.pad(F.logsigmoid(-logits).cumsum(-1), (1, 0))
        return stay + F.pad(F.logsigmoid(logits), (0, 1))

    def compute_confidence(self, states: States, head: Head | None = None) -> Float[Tensor, "B T"]:
        return self._logit(states, len(states) - 1).sigmoid()

    def forward(self, states: States, ctx: Context, rule_state: State = (), head: Head | None = None) -> Leaves:
        return self.compute_confidence(states) > of_layer(self.threshold, len(states))

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        return _exit_loss(self.log_q(states), self.oracle(logits, targets, _documents(ctx)))


class UniformExit(Rule):
    """By chance: each token's exit is any of the layers, all alike. It decides nothing but mixed training.

    Exits are drawn as dropout is, anew in each call, seeded by `torch.manual_seed`.

    depth: how many layers there are.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 2.2.2.
    """

    def __init__(self, depth: int):
        super().__init__()
        self.depth = check_at_least("depth", depth, 1)

    def agree(self, d: int, depth: int) -> None:
        if depth != self.depth:
            raise ValueError(f"UniformExit({self.depth}) came for {depth} layers; give UniformExit({depth})")

    def begin_call(self, state: State, ctx: Context) -> Int[Tensor, "B T"]:
        return torch.randint(1, self.depth + 1, ctx.pos.shape, device=ctx.pos.device)

    def forward(self, states: States, ctx: Context, rule_state: State = (), head: Head | None = None) -> Leaves:
        return rule_state <= len(states)


class SequenceExitState(NamedTuple):
    """The exit of each row, from 1; 0 before a source was read."""

    exit: Int[Tensor, " B"]


class BySequence(Rule):
    """All tokens of a row leave at the likeliest exit of softmax(W s + b), s the mean of the source's states.

    It learns by -log q of the one exit that its oracle names for the whole row (equations 9 and 10). Each token of a
    row has that loss, as equation 6 sums over tokens; it trains the encoder too, as in the paper. `MultiExitSeq2Seq`
    trains it.

    d: the width of a state.
    depth: how many layers there are.
    oracle: at which exit a row had better left: `Likelihood()` unless given, or `Correctness()`; its sigma is of tokens
        and not read.

    Errors: ValueError where no source was ever given, and for an oracle with a sigma. Source: Elbayad et al., 2019,
    arXiv:1910.10073, section 3.1.
    """

    def __init__(self, d: int, depth: int, *, oracle: ExitOracle | None = None):
        super().__init__()
        self.oracle = oracle or Likelihood()
        if self.oracle.sigma:
            raise ValueError(
                f"sigma={self.oracle.sigma} smooths over tokens, and BySequence names an exit for a row; give 0"
            )
        self.choice = nn.Linear(check_at_least("d", d, 1), check_at_least("depth", depth, 1))

    def agree(self, d: int, depth: int) -> None:
        _check_made_for(self, self.choice.in_features, self.choice.out_features, d, depth)

    def start(self, batch: int, *, device: torch.device | None = None) -> SequenceExitState:
        return SequenceExitState(torch.zeros(batch, dtype=torch.long, device=device))

    def log_q(self, source: Float[Tensor, "B S D"], source_pos: Int[Tensor, "B S"]) -> Float[Tensor, "B N"]:
        """Log-probabilities of the exits, to train by."""
        real = (source_pos >= 0)[..., None]
        mean = torch.where(real, source, 0.0).sum(1) / real.sum(1).clamp_min(1)
        return linear_float32(self.choice, mean).log_softmax(-1)

    def begin_call(self, state: SequenceExitState, ctx: Context) -> SequenceExitState:
        if ctx.source is not None and ctx.source_pos is not None:
            source, source_pos = ctx.source, ctx.source_pos
            return SequenceExitState(choice(lambda: self.log_q(source, source_pos).argmax(-1) + 1))
        if not torch.compiler.is_compiling():
            ctx.memo.expect(
                state.exit > 0, "BySequence got no source; pass Context(source=..., source_pos=...) in the first call"
            )
            ctx.memo.settle()
        return state

    def forward(self, states: States, ctx: Context, rule_state: State = (), head: Head | None = None) -> Leaves:
        return (rule_state.exit <= len(states))[:, None].expand(states[-1].shape[:2])

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"]:
        if ctx is None or ctx.source is None or ctx.source_pos is None:
            raise ValueError("BySequence learns from a source; give the Context that the layers read it in")
        best = self.oracle.of_rows(logits, targets)[:, None]
        return _exit_loss(self.log_q(ctx.source, ctx.source_pos)[:, None], best).expand(targets.shape)


def _check_made_for(rule: Rule, own_d: int, own_depth: int, d: int, depth: int) -> None:
    if (own_d, own_depth) != (d, depth):
        name = type(rule).__name__
        call = f"{name}({own_d}, {own_depth}) came for {depth} layers of width {d}"
        raise ValueError(f"{call}; give {name}({d}, {depth})")


def _check_threshold_count(threshold: Threshold | DecayingThreshold, depth: int) -> None:
    threshold = threshold.threshold if isinstance(threshold, DecayingThreshold) else threshold
    if isinstance(threshold, tuple) and len(threshold) != depth - 1:
        problem = f"{len(threshold)} thresholds came for {depth} layers"
        raise ValueError(f"{problem}; give {depth - 1}, none for the last, or one number")


def _documents(ctx: Context | None) -> Int[Tensor, "B T"] | None:
    """Which document each token of a row is of, where the batch says so."""
    return ctx.only.ids if ctx is not None and isinstance(ctx.only, Document) else None


def _exit_loss(log_q: Float[Tensor, "B T N"], exits: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """-log q of the exits that were named."""
    return -log_q.gather(-1, exits[..., None])[..., 0]
