"""ACT: a recurrent network that takes as many steps for a token as the token needs."""

from typing import Literal

from torch import nn

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.models.lm import LM
from kinformer.nn.depth.act import Halting, Last, add_weighted, interpolate_answer
from kinformer.nn.depth.recurrent_act import RecurrentACT

Cell = Literal["rnn", "gru", "lstm"]


@member(cost="L", recipe=Recipe(lr=4e-3))
def act_rnn(
    d: int = 256,
    depth: int = 5,
    cell: Cell = "rnn",
    mix: Literal["weighted", "running"] = "weighted",
    last: Last = "remainder",
    strict: bool = False,
    ponder: float = 0.01,
    epsilon: float = 0.01,
    bias: float = 1.0,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Adaptive computation time (Graves, 2016, arXiv:1603.08983) in a recurrent network.

    Choose it to study adaptive time without attention. Do not choose it to compete with a Transformer. The model trains
    on consecutive text and carries its recurrent state from batch to batch.

    d: model width.
    depth: maximum number of steps per token.
    cell: recurrent cell: "rnn", "gru" or "lstm". The paper has a plain network for parity and an LSTM for language. The
        LSTM starts to learn more slowly.
    mix: combination of the step states: "weighted" is the paper's sum of weight times state. With "running", as in the
        Universal Transformer, each step moves the output toward its state, so late steps weigh more.
    last: weight of step `depth` if the token has not stopped before: "remainder", so that all weights sum to 1 (the
        paper), or "probability", the halting probability (the Universal Transformer).
    strict: a token stops when its halting sum exceeds 1 - `epsilon`; if False, when the sum reaches it.
    ponder: loss weight of each step, the paper's tau; the paper has 1e-4 to 1e-1.
    epsilon: tolerance of the halting sum, so that a token can stop after one step.
    bias: initial bias of the halting unit; a large value stops tokens early.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of the embeddings.
    """
    check_at_least("depth", depth, 1)
    kinds = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}
    unit = Halting(d, epsilon=epsilon, bias=bias, last=last, strict=strict)
    check_option("mix", mix, ("weighted", "running"))
    body = RecurrentACT(
        d,
        depth,
        unit,
        cell=kinds[check_option("cell", cell, Cell)](d + 1, d),
        mix=add_weighted if mix == "weighted" else interpolate_answer,
    )
    return LM(vocab, d, body, tie=False, scale=d**0.5, dropout=dropout, penalties={"ponder": ponder}, lanes=True)


SLOW = {"learns": "gated cells learn later: accuracy 0.88 at copying from 6 back after the law's 800 steps"}
EXAMPLES = (
    lambda: act_rnn(d=16, depth=3, cell="rnn", vocab=11),
    Example(lambda: act_rnn(d=16, depth=3, cell="gru", mix="running", last="probability", strict=True, vocab=11), SLOW),
    Example(lambda: act_rnn(d=16, depth=2, cell="lstm", vocab=11), SLOW),
)
