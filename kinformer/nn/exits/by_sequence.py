"""BySequence: an exit rule in which all tokens of a row leave after the same layer."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import linear_float32
from kinformer.core.checks import check_at_least
from kinformer.core.choice import choice
from kinformer.core.layer import Context, State
from kinformer.nn.exits.confidence import Head, Logits, States
from kinformer.nn.exits.exit_rule import ExitRule, Leaves, check_made_for, exit_loss
from kinformer.nn.losses.exit_oracles import ExitOracle, Likelihood


class SequenceExitState(NamedTuple):
    """The state of a `BySequence` rule: the exit of each row.

    exit: number of the layer after which the row leaves, from 1, [B]; 0 before a source was given.
    """

    exit: Int[Tensor, " B"]


class BySequence(ExitRule):
    """An exit rule that chooses one exit for a whole row from the mean hidden state of its source.

    exit = argmax softmax(W s + b)

    Here s is the mean of the hidden states of the source (the encoder's output). Choose this rule for
    sequence-to-sequence models that `MultiExitSeq2Seq` trains. Choose `Geometric` or `Multinomial` if the tokens of a
    row may leave at different exits.

    The rule's loss is -log q of one exit for the whole row, named by an oracle, which compares the predictions of all
    exits with the targets (equations 9 and 10). Here q is the softmax above. Each token of the row has this loss, as
    equation 6 sums over tokens. The loss trains the encoder too, as in the paper.

    d: width of a hidden state.
    depth: number of layers.
    oracle: names for each row in training the exit with the best predictions after a price per layer: `Likelihood()` by
        default, or `Correctness()`. Its sigma must be 0, since sigma smooths over tokens.

    Errors: ValueError if neither this call nor an earlier one gave a source, and for an oracle with a sigma.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 3.1.
    """

    def __init__(self, d: int, depth: int, *, oracle: ExitOracle | None = None):
        super().__init__()
        self.oracle = oracle or Likelihood()
        if self.oracle.sigma:
            raise ValueError(
                f"sigma={self.oracle.sigma} smooths over tokens, but BySequence chooses one exit per row. Pass sigma=0"
            )
        self.choice = nn.Linear(check_at_least("d", d, 1), check_at_least("depth", depth, 1))

    def check_sizes(self, d: int, depth: int) -> None:
        check_made_for(self, self.choice.in_features, self.choice.out_features, d, depth)

    def start(self, batch: int, *, device: torch.device | None = None) -> SequenceExitState:
        return SequenceExitState(torch.zeros(batch, dtype=torch.long, device=device))

    def log_q(self, source: Float[Tensor, "B S D"], source_pos: Int[Tensor, "B S"]) -> Float[Tensor, "B N"]:
        """Return the log-probability of each exit for each row, for the rule's loss.

        source: hidden states of the source, [B S D].
        source_pos: positions of the source, [B S]; -1 for padding.
        """
        real = (source_pos >= 0)[..., None]
        mean = torch.where(real, source, 0.0).sum(1) / real.sum(1).clamp_min(1)
        return linear_float32(self.choice, mean).log_softmax(-1)

    def begin_call(self, state: SequenceExitState, ctx: Context, x: Float[Tensor, "B T D"]) -> SequenceExitState:
        if ctx.source is not None and ctx.source_pos is not None:
            source, source_pos = ctx.source, ctx.source_pos
            return SequenceExitState(choice(lambda: self.log_q(source, source_pos).argmax(-1) + 1))
        if not torch.compiler.is_compiling():
            ctx.memo.expect(
                state.exit > 0, "BySequence got no source; pass Context(source=..., source_pos=...) in the first call"
            )
            ctx.memo.settle()
        return state

    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves:
        return (rule_state.exit <= len(states))[:, None].expand(states[-1].shape[:2])

    def loss(
        self, states: States, logits: Logits, targets: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Float[Tensor, "B T"]:
        if ctx is None or ctx.source is None or ctx.source_pos is None:
            raise ValueError(
                "BySequence needs a source for its loss. Pass the Context of the layers, with source and source_pos"
            )
        best = self.oracle.of_rows(logits, targets)[:, None]
        return exit_loss(self.log_q(ctx.source, ctx.source_pos)[:, None], best).expand(targets.shape)
