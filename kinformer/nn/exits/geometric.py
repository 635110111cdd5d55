"""Geometric: an exit rule with a classifier after each layer that decides whether a token leaves."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32, linear_float32
from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.layer import Context, State
from kinformer.nn.exits.confidence import Head, States, evenly_spaced
from kinformer.nn.exits.exit_rule import Leaves, OracleTrainedRule, check_made_for
from kinformer.nn.exits.threshold import Threshold, check_threshold, check_threshold_count, threshold_of_layer
from kinformer.nn.losses.exit_oracles import ExitOracle


class Geometric(OracleTrainedRule):
    """An exit rule in which a classifier decides after each layer whether a token leaves.

        leave if sigmoid(w.h + b) > threshold

    Here h is the token's hidden state after the layer. Choose it for a learned exit per token that can use every
    layer's hidden state. `Multinomial` decides once, after the first layer. The rule's loss is -log q of the exit that
    the oracle names. Here q(n) is the probability to leave at exit n and not before.

    d: width of a hidden state.
    depth: number of layers.
    threshold: probability above which a token leaves: a number, or one for each layer but the last.
    shared: True shares w and b between all layers, as in the paper; False gives each layer its own.
    oracle: names for each token in training the exit with the best prediction of the target after a price per layer:
        `Likelihood()` by default, or `Correctness()`.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 3.2.
    """

    def __init__(
        self, d: int, depth: int, *, threshold: Threshold = 0.5, shared: bool = True, oracle: ExitOracle | None = None
    ):
        super().__init__(oracle)
        self.threshold = check_threshold(threshold, 0, 1)
        self.d, self.depth, self.shared = (
            check_at_least("d", d, 1),
            check_at_least("depth", depth, 1),
            check_flag("shared", shared),
        )
        self.stop = nn.ModuleList(nn.Linear(d, 1) for _ in range(1 if shared else depth - 1))

    def check_sizes(self, d: int, depth: int) -> None:
        check_made_for(self, self.d, self.depth, d, depth)
        check_threshold_count(self.threshold, depth)

    def grid(self, count: int) -> list[Threshold]:
        return list(evenly_spaced(1.0, 0.0, count))

    def leave_at(self, threshold: Threshold) -> None:
        self.threshold = check_threshold(threshold, 0, 1)

    def _logit(self, states: Sequence[Float[Tensor, "B T D"]], n: int) -> Float[Tensor, "B T"]:
        unit = self.stop[0 if self.shared else n]
        assert isinstance(unit, nn.Linear)
        return linear_float32(unit, states[n])[..., 0]

    def log_q(self, states: Sequence[Float[Tensor, "B T D"]]) -> Float[Tensor, "B T N"]:
        """Return the log-probability that each token leaves at each exit and not before, for the rule's loss.

        The last exit gets the remaining probability.
        """
        if len(states) == 1:
            return torch.zeros_like(at_least_float32(states[0][..., :1]))
        logits = torch.stack([self._logit(states, n) for n in range(len(states) - 1)], -1)
        stay = F.pad(F.logsigmoid(-logits).cumsum(-1), (1, 0))
        return stay + F.pad(F.logsigmoid(logits), (0, 1))

    def compute_confidence(self, states: States, head: Head | None = None) -> Float[Tensor, "B T"]:
        return self._logit(states, len(states) - 1).sigmoid()

    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves:
        return self.compute_confidence(states) > threshold_of_layer(self.threshold, len(states))
