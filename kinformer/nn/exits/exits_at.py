"""ExitsAt: an exit rule that is asked only after some of the layers."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_part
from kinformer.core.layer import Context, State
from kinformer.core.sublayer_names import add_prefix
from kinformer.nn.exits.confidence import Head, Logits, States
from kinformer.nn.exits.exit_rule import ExitRule, Leaves
from kinformer.nn.exits.threshold import Threshold


class ExitsAt(ExitRule):
    """An exit rule that asks another rule after some of the layers; no token leaves elsewhere.

    Choose it for deep models, in which neighbouring layers predict almost the same. A confidence that reads logits
    costs as much as a layer or more, so fewer exits save time.

    rule: the rule that decides, such as a `ConfidenceThreshold`.
    layers: numbers of the layers after which tokens may leave, from 1 at the bottom.

    Errors: ValueError for no layers, and for a number below 1 or from the last layer on.
    """

    def __init__(self, rule: ExitRule, layers: tuple[int, ...]):
        super().__init__()
        self.rule = check_part("rule", rule, ExitRule, "a rule, such as ConfidenceThreshold(Saturation(), 0.9)")
        if not layers or min(layers) < 1:
            raise ValueError(f"wrong layers for exits: got {layers}, expected numbers from 1 of one or more layers")
        self.layers, self.strict = frozenset(layers), rule.strict

    def check_sizes(self, d: int, depth: int) -> None:
        self.rule.check_sizes(d, depth)
        if max(self.layers) >= depth:
            raise ValueError(
                f"wrong layers for exits: got {max(self.layers)}, expected numbers from 1 to {depth - 1}, because all "
                f"tokens leave after layer {depth}"
            )

    def compute_confidence(self, states: States, head: Head | None = None) -> Float[Tensor, "B T"]:
        """Return the rule's confidence after a layer with an exit, and -inf after the others."""
        if len(states) in self.layers:
            return self.rule.compute_confidence(states, head)
        return torch.full_like(states[-1][..., 0], -torch.inf)

    def grid(self, count: int) -> list[Threshold]:
        return self.rule.grid(count)

    def leave_at(self, threshold: Threshold) -> None:
        self.rule.leave_at(threshold)

    def held_against(
        self, threshold: Float[Tensor, "*#n"], steps: Int[Tensor, "*#n"], max_new_tokens: int | None
    ) -> Float[Tensor, "*#n"]:
        return self.rule.held_against(threshold, steps, max_new_tokens)

    def start(self, batch: int, *, device: torch.device | None = None) -> State:
        return self.rule.start(batch, device=device)

    def begin_call(self, state: State, ctx: Context, x: Float[Tensor, "B T D"]) -> State:
        return self.rule.begin_call(state, ctx, x)

    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves:
        if len(states) in self.layers:
            return self.rule(states, ctx, rule_state, head)
        return torch.zeros_like(states[-1][..., 0], dtype=torch.bool)

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        return self.rule.loss(states, logits, targets, ctx)

    def stats(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Mapping[str, Tensor]:
        return add_prefix("rule", self.rule.stats(logits, targets))
