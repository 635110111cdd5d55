"""ExitRule: the base class of exit rules, which decide after each layer which tokens leave a stack."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Context, State
from kinformer.core.patterns.document import Document
from kinformer.nn.exits.confidence import Head, Logits, States
from kinformer.nn.exits.threshold import Threshold
from kinformer.nn.losses.exit_oracles import ExitOracle, Likelihood

Leaves = Bool[Tensor, "B T"]


class ExitRule(nn.Module, KeywordHints, ABC):
    """The base class of exit rules: modules that decide after each layer which tokens leave the stack.

    Subclasses implement `forward`, which returns True for tokens that leave now, in float32 or better. Its `states` are
    the outputs of each layer so far, in order. Its `head` maps a hidden state to logits, if the model provides its
    head. Its `ctx` is the context of the layers. A rule that counts tokens reads `ctx.steps` or `ctx.position_ids`,
    since `ctx.pos` also counts a prompt and earlier documents. A rule that needs values of earlier calls keeps them in
    `rule_state`: `start` makes it and `begin_call` updates it.

    strict: for rules with a threshold, whether a token leaves only if its confidence exceeds the threshold; otherwise
        it also leaves if both are equal.
    """

    strict: bool = True

    def check_sizes(self, d: int, depth: int) -> None:
        """Raise ValueError if the rule is not made for `depth` layers of width d."""

    def compute_confidence(self, states: States, head: Head | None = None) -> Float[Tensor, "B T"]:
        """Return for each token the number that the rule compares with its exit threshold.

        states: hidden states after each layer so far.
        head: map from a hidden state to logits, if the model provides one.

        Errors: ValueError if the rule has no threshold.
        """
        raise ValueError(f"{type(self).__name__} has no exit threshold. Use a rule that has one, such as Geometric")

    def grid(self, count: int) -> list[Threshold]:
        """Return `count` exit thresholds for calibration to try; at the first the fewest tokens leave.

        Errors: ValueError if the rule has no threshold.
        """
        raise ValueError(f"{type(self).__name__} has no exit threshold, so there is none to calibrate")

    def leave_at(self, threshold: Threshold) -> None:
        """Use this exit threshold from now on.

        Errors: ValueError if the rule has no threshold or the threshold is out of range.
        """
        raise ValueError(f"{type(self).__name__} has no exit threshold: got threshold {threshold}. Leave it out")

    def held_against(
        self, threshold: Float[Tensor, "*#n"], steps: Int[Tensor, "*#n"], max_new_tokens: int | None
    ) -> Float[Tensor, "*#n"]:
        """Return the exit threshold of tokens at these steps: `threshold` itself, unless it decays.

        threshold: threshold before the decay.
        steps: index of each token in its output.
        max_new_tokens: largest number of tokens of the output; None if unknown.
        """
        return threshold

    def start(self, batch: int, *, device: torch.device | None = None) -> State:
        """Return what the rule keeps from call to call, before the first call; () for nothing."""
        return ()

    def begin_call(self, state: State, ctx: Context, x: Float[Tensor, "B T D"]) -> State:
        """Return the state that `start` made, updated for this call; x is the input of the first layer."""
        return state

    @abstractmethod
    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves: ...

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        """Return the loss per token that trains the rule, or None if the rule has nothing to learn.

        states: hidden states after each layer, computed while no token leaves.
        logits: logits of each exit.
        targets: token ids, [B T]; -1 for no target.
        ctx: context of the layers, for rules that depend on a source.
        """
        return None

    def stats(self, logits: Logits, targets: Int[Tensor, "B T"]) -> Mapping[str, Tensor]:
        """Return the sums over a training batch that `after_step` of the rule's parts needs, by part name."""
        return {}


class OracleTrainedRule(ExitRule):
    """The base class of exit rules that learn a distribution q over the exits of each token.

    loss = -log q(exit that the oracle names)

    Subclasses implement `log_q`.

    oracle: names for each token in training the exit with the best prediction of the target after a price per layer:
        `Likelihood()` by default, or `Correctness()`.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 3.2.
    """

    def __init__(self, oracle: ExitOracle | None = None):
        super().__init__()
        self.oracle = oracle or Likelihood()

    @abstractmethod
    def log_q(self, states: States) -> Float[Tensor, "B T N"]:
        """Return the log-probability of each exit for each token, for the rule's loss."""

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        documents = ctx.only.ids if ctx is not None and isinstance(ctx.only, Document) else None
        return exit_loss(self.log_q(states), self.oracle(logits, targets, documents))


def check_made_for(rule: ExitRule, own_d: int, own_depth: int, d: int, depth: int) -> None:
    """Raise ValueError if an exit rule was made for another width or another number of layers.

    rule: the exit rule; the message names its class.
    own_d, own_depth: width and number of layers for which the rule was made.
    d, depth: width and number of layers of the model.
    """
    if (own_d, own_depth) != (d, depth):
        name = type(rule).__name__
        call = f"{name}({own_d}, {own_depth}) does not fit {depth} layers of width {d}"
        raise ValueError(f"{call}. Pass {name}({d}, {depth})")


def exit_loss(log_q: Float[Tensor, "B T N"], exits: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the loss of an exit rule: -log q of the given exits, where q is the rule's distribution.

    log_q: log-probabilities of the exits, [B T N].
    exits: index of each token's exit, from 0, [B T].
    """
    return -log_q.gather(-1, exits[..., None])[..., 0]
