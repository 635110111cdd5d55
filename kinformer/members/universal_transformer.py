"""The Universal Transformer: one block, as often as each token needs."""

from typing import Literal

from kinformer.attention import Attention
from kinformer.blocks.post_norm import PostNorm
from kinformer.core.checks import one_of
from kinformer.depth.act import ACT, Halted, Halting, Last, running, weighted
from kinformer.depth.universal import Universal
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.lm import LM
from kinformer.patterns.causal import Causal
from kinformer.positions.timing import Timing
from kinformer.projections.qkv import QKV

Kind = Literal["act", "fixed"]
Answer = Literal["running", "weighted"]


@member
def universal_transformer(
    d: int = 288, depth: int = 4, heads: int = 6, head_dim: int | None = None, halting: Kind = "act",
    mix: Answer = "running", halted: Halted = "copied", last: Last = "remainder", ponder: float = 0.01,
    epsilon: float = 0.01, vocab: int = 256, dropout: float = 0.0
) -> LM:
    """Universal Transformer (Dehghani et al., 2018, arXiv:1807.03819), as a decoder: one block of up to `depth` steps.

    Choose it for tasks whose tokens need unequal work. With `halting` "act" each token stops once its halting sum
    exceeds 1 - `epsilon`, and pays `ponder` per step; "fixed" takes all steps. `mix` says how its states make the
    answer: running as in the paper's appendix, weighted as in Graves. The paper's text copies `halted` states and its
    appendix goes on with them ("updated"); the `last` possible step weighs the remainder as in Graves, or its
    "probability" as in the appendix. Its block is wide where that of others is repeated.
    """
    one_of("halting", halting, Kind), one_of("mix", mix, Answer)
    attention = Attention(QKV(d, heads, head_dim=head_dim), Softmax(Causal(), dropout=dropout, lse=False))
    block = PostNorm(attention, MLP(d, activation="relu", dropout=dropout), dropout=dropout)
    steps = Universal(block, depth, Timing(d))
    if halting == "fixed":
        return LM(vocab, d, steps, scale=d**0.5, dropout=dropout)
    unit = Halting(d, epsilon=epsilon, last=last, strict=True)
    body = ACT(steps, unit, mix=running if mix == "running" else weighted, halted=halted)
    return LM(vocab, d, body, scale=d**0.5, dropout=dropout, penalties={"ponder": ponder})


EXAMPLES = (
    lambda: universal_transformer(d=16, depth=3, heads=2, vocab=11),
    lambda: universal_transformer(d=16, depth=3, heads=2, vocab=11, halted="updated", last="probability"),
)
