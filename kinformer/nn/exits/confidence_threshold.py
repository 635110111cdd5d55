"""ConfidenceThreshold: an exit rule that compares a token's confidence with a threshold (CALM)."""

from collections.abc import Mapping
from dataclasses import replace

from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_flag, check_part
from kinformer.core.layer import Context, State
from kinformer.core.sublayer_names import add_prefix
from kinformer.nn.exits.confidence import Confidence, Head, Logits, States
from kinformer.nn.exits.decaying_threshold import DecayingThreshold
from kinformer.nn.exits.exit_rule import ExitRule, Leaves
from kinformer.nn.exits.threshold import Threshold, check_threshold, check_threshold_count, threshold_of_layer


class ConfidenceThreshold(ExitRule):
    """An exit rule in which a token leaves as soon as its confidence reaches the threshold.

    Choose it to add early exits as CALM does; calibration can choose the threshold. `Geometric` instead learns when to
    leave from an oracle, which knows the targets in training.

    confidence: score of how sure a token's prediction is: `SoftmaxResponse()`, `Saturation()` or `Probe(d)`.
    threshold: a number in the range of the confidence, one for each layer but the last, or a threshold that falls while
        an output grows: `DecayingThreshold(0.9, 512)`.
    strict: True leaves only if the confidence exceeds the threshold, as public code does. False, as the paper, also
        leaves if both are equal.

    Errors: ValueError for a threshold outside the confidence's range. Source: Schuster et al., 2022, arXiv:2207.07061,
    section 3.
    """

    def __init__(self, confidence: Confidence, threshold: Threshold | DecayingThreshold, *, strict: bool = False):
        super().__init__()
        self.confidence = check_part("confidence", confidence, Confidence, "a confidence, such as Saturation()")
        self.strict = check_flag("strict", strict)
        check_threshold(_undecayed(threshold), *confidence.range)
        self.threshold = threshold

    def check_sizes(self, d: int, depth: int) -> None:
        self.confidence.check_sizes(d)
        check_threshold_count(_undecayed(self.threshold), depth)

    def compute_confidence(self, states: States, head: Head | None = None) -> Float[Tensor, "B T"]:
        return self.confidence(states, head)

    def grid(self, count: int) -> list[Threshold]:
        return list(self.confidence.grid(count))

    def leave_at(self, threshold: Threshold) -> None:
        """Use this exit threshold from now on; a decaying threshold keeps its decay with this as its scale."""
        check_threshold(threshold, *self.confidence.range)
        schedule = self.threshold
        self.threshold = (
            replace(schedule, threshold=threshold) if isinstance(schedule, DecayingThreshold) else threshold
        )

    def held_against(
        self, threshold: Float[Tensor, "*#n"], steps: Int[Tensor, "*#n"], max_new_tokens: int | None
    ) -> Float[Tensor, "*#n"]:
        schedule = self.threshold
        return (
            schedule.decay(threshold, steps, max_new_tokens) if isinstance(schedule, DecayingThreshold) else threshold
        )

    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves:
        sure = self.compute_confidence(states, head)
        rule_threshold = self.threshold
        if isinstance(rule_threshold, DecayingThreshold):
            threshold: float | Tensor = rule_threshold(ctx.steps, ctx.max_new_tokens, layer=len(states))
        else:
            threshold = threshold_of_layer(rule_threshold, len(states))
        return sure > threshold if self.strict else sure >= threshold

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        return self.confidence.loss(states, logits, targets)

    def stats(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Mapping[str, Tensor]:
        return add_prefix("confidence", self.confidence.stats(logits, targets))


def _undecayed(threshold: Threshold | DecayingThreshold) -> Threshold:
    """Return the threshold, or for a decaying threshold the numbers that scale it."""
    return threshold.threshold if isinstance(threshold, DecayingThreshold) else threshold
