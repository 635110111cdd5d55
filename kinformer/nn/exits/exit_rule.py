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
    """Which tokens leave after a layer, decided in float32 or better.

    `states` holds what each layer so far made, the last one's last; `head` maps a state to logits, where a model lends
    its own. `ctx` is the layers' context: a rule that counts tokens asks it for `steps` or `position_ids`: positions
    also count a prompt and the documents before. A rule that needs something from outside keeps it from call to call:
    `start` and `begin_call`. One with a threshold says by `strict` whether that must be exceeded or only reached.
    """

    strict: bool = True

    def check_sizes(self, d: int, depth: int) -> None:
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

    def begin_call(self, state: State, ctx: Context, x: Float[Tensor, "B T D"]) -> State:
        """The same with what this call brings from outside; x is what enters the first layer."""
        return state

    @abstractmethod
    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves: ...

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


class OracleTrainedRule(ExitRule):
    """A rule with a distribution q over the exits of each token. It learns by -log q of the exit that its oracle names.

    oracle: at which exit a token had better left: `Likelihood()` unless given, or `Correctness()`.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 3.2.
    """

    def __init__(self, oracle: ExitOracle | None = None):
        super().__init__()
        self.oracle = oracle or Likelihood()

    @abstractmethod
    def log_q(self, states: States) -> Float[Tensor, "B T N"]:
        """Log-probabilities of the exits, to train by."""

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"] | None:
        documents = ctx.only.ids if ctx is not None and isinstance(ctx.only, Document) else None
        return exit_loss(self.log_q(states), self.oracle(logits, targets, documents))


def check_made_for(rule: ExitRule, own_d: int, own_depth: int, d: int, depth: int) -> None:
    if (own_d, own_depth) != (d, depth):
        name = type(rule).__name__
        call = f"{name}({own_d}, {own_depth}) came for {depth} layers of width {d}"
        raise ValueError(f"{call}; give {name}({d}, {depth})")


def exit_loss(log_q: Float[Tensor, "B T N"], exits: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """-log q of the exits that were named."""
    return -log_q.gather(-1, exits[..., None])[..., 0]
