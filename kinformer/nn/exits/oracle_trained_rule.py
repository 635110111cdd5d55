"""OracleTrainedRule: an exit rule that learns the exit that an oracle names for each token."""

from abc import abstractmethod

from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.patterns.document import Document
from kinformer.nn.exits.confidence import Logits, States
from kinformer.nn.exits.exit_rule import ExitRule, exit_loss
from kinformer.nn.losses.exit_oracles import ExitOracle, Likelihood


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
