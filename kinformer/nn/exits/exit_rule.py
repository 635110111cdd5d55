"""ExitRule: the contract of exit rules, which decide after each layer which tokens leave a stack."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.layer import Context, State
from kinformer.core.patterns.document import Document
from kinformer.nn.exits.confidence import Head, Logits, States
from kinformer.nn.exits.threshold import Threshold
from kinformer.nn.losses.exit_oracles import ExitOracle, Likelihood

Leaves = Bool[Tensor, "B T"]


class ExitRule(nn.Module, ABC):
    """The base of exit rules: a module that says after each layer which tokens leave.

    Decisions are made in float32 or better. `states` holds the output of each layer so far, in order. `head` maps a
    state to logits, if the model provides its own head. `ctx` is the context of the layers. A rule that counts tokens
    reads `ctx.steps` or `ctx.position_ids`; positions also count a prompt and earlier documents. A rule that needs
    values from outside keeps them in `rule_state` from call to call: `start` makes it and `begin_call` updates it.

    The attribute `strict` of a rule with a threshold says whether the confidence must exceed the threshold or only
    reach it.
    """

    strict: bool = True

    def check_sizes(self, d: int, depth: int) -> None:
        """Raise ValueError if the rule is not made for `depth` layers of width d."""

    def compute_confidence(self, states: States, head: Head | None = None) -> Float[Tensor, "B T"]:
        """Return the number compared with the threshold after the last of these layers.

        Errors: ValueError if the rule has no threshold.
        """
        raise ValueError(f"{type(self).__name__} has no exit threshold. Use a rule that has one, such as Geometric")

    def grid(self, count: int) -> list[Threshold]:
        """Return `count` thresholds for calibration, the most careful first.

        Errors: ValueError if the rule has no threshold.
        """
        raise ValueError(f"{type(self).__name__} has no exit threshold, so there is none to calibrate")

    def leave_at(self, threshold: Threshold) -> None:
        """Use this threshold from now on.

        Errors: ValueError if the rule has no threshold or the threshold is out of range.
        """
        raise ValueError(f"{type(self).__name__} has no exit threshold: got threshold {threshold}. Leave it out")

    def held_against(
        self, threshold: Float[Tensor, "*#n"], steps: Int[Tensor, "*#n"], max_new_tokens: int | None
    ) -> Float[Tensor, "*#n"]:
        """Return the effective threshold of tokens at these steps: the threshold itself, unless it decays."""
        return threshold

    def start(self, batch: int, *, device: torch.device | None = None) -> State:
        """Return the rule's state before the first call."""
        return ()

    def begin_call(self, state: State, ctx: Context, x: Float[Tensor, "B T D"]) -> State:
        """Return the rule's state updated from the context of this call; x is the input of the first layer."""
        return state

    @abstractmethod
    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves: ...

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        """Return the rule's loss per token, from the states and logits of all exits if no token leaves.

        `ctx` is the context of the layers, for rules that learn from a source. None means that the rule learns nothing.
        """
        return None

    def stats(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Mapping[str, Tensor]:
        """Return the sums of a training batch for `after_step` of the rule's parts, keyed by part name."""
        return {}


class OracleTrainedRule(ExitRule):
    """The base of rules with a distribution q over the exits of each token.

    loss = -log q(exit that the oracle names)

    oracle: names the best exit of each token in training: `Likelihood()` by default, or `Correctness()`.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 3.2.
    """

    def __init__(self, oracle: ExitOracle | None = None):
        super().__init__()
        self.oracle = oracle or Likelihood()

    @abstractmethod
    def log_q(self, states: States) -> Float[Tensor, "B T N"]:
        """Return the log-probabilities of the exits, for the loss."""

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        documents = ctx.only.ids if ctx is not None and isinstance(ctx.only, Document) else None
        return exit_loss(self.log_q(states), self.oracle(logits, targets, documents))


def check_made_for(rule: ExitRule, own_d: int, own_depth: int, d: int, depth: int) -> None:
    """Raise ValueError if a rule was made for another width or another number of layers.

    rule: the exit rule; the message names its class.
    own_d, own_depth: width and number of layers for which the rule was made.
    d, depth: width and number of layers of the model.
    """
    if (own_d, own_depth) != (d, depth):
        name = type(rule).__name__
        call = f"{name}({own_d}, {own_depth}) does not fit {depth} layers of width {d}"
        raise ValueError(f"{call}. Pass {name}({d}, {depth})")


def exit_loss(log_q: Float[Tensor, "B T N"], exits: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return -log q of the given exits.

    log_q: log-probabilities of the exits, [B T N].
    exits: index of each token's exit, from 0, [B T].
    """
    return -log_q.gather(-1, exits[..., None])[..., 0]
