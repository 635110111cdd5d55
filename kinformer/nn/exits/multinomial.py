"""Multinomial: an exit rule that chooses a token's exit from its hidden state after the first layer."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.autocast import linear_float32
from kinformer.core.checks import check_at_least
from kinformer.core.layer import Context, State
from kinformer.nn.exits.confidence import Head, States
from kinformer.nn.exits.exit_rule import Leaves, OracleTrainedRule, check_made_for
from kinformer.nn.losses.exit_oracles import ExitOracle


class Multinomial(OracleTrainedRule):
    """An exit rule that chooses each token's exit from its hidden state h after the first layer.

    exit = argmax softmax(W h + b)

    Choose it if the exit must be known after one layer. `Geometric` decides after each layer. The rule's loss is -log q
    of the exit that the oracle names; q is the softmax above.

    d: width of a hidden state.
    depth: number of layers.
    oracle: names for each token in training the exit with the best prediction of the target after a price per layer:
        `Likelihood()` by default, or `Correctness()`.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 3.2.
    """

    def __init__(self, d: int, depth: int, *, oracle: ExitOracle | None = None):
        super().__init__(oracle)
        self.choice = nn.Linear(check_at_least("d", d, 1), check_at_least("depth", depth, 1))

    def check_sizes(self, d: int, depth: int) -> None:
        check_made_for(self, self.choice.in_features, self.choice.out_features, d, depth)

    def log_q(self, states: Sequence[Float[Tensor, "B T D"]]) -> Float[Tensor, "B T N"]:
        """Return the log-probability of each exit for each token, for the rule's loss."""
        return linear_float32(self.choice, states[0]).log_softmax(-1)

    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves:
        return linear_float32(self.choice, states[0]).argmax(-1) < len(states)
