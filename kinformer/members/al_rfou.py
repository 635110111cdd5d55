"""Al-Rfou: a deep decoder of characters that is taught by auxiliary losses."""

import math
from typing import Any

from kinformer.core.checks import check_at_least, check_in_range, check_unused
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.layer import Layer
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.auxiliary_lm import AuxiliaryLM
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.losses.multi_step_loss import LowerSchedule


@member(
    recipe=Recipe(lr=1e-3, warmup=0.2),
    needs={
        "length": "position=learned",
        "shared_head": "every_layer=true and depth>1",
        "lower_schedule": "every_layer=true and depth>1",
    },
)
def al_rfou(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    hidden: int | None = None,
    every_position: bool = True,
    every_layer: bool = True,
    lower_schedule: LowerSchedule = "step",
    shared_head: bool = False,
    targets: int = 2,
    further: float = 0.5,
    pattern: str = "Causal()",
    position: Positions = "learned",
    per_layer: bool = True,
    norm: Norms = "post",
    length: int = 512,
    vocab: int = 256,
    dropout: float = 0.0,
) -> AuxiliaryLM:
    """The character Transformer (Al-Rfou et al., 2018, arXiv:1808.04444): layers and further tokens as more losses.

    loss = L_n + sum of w_l L_l over each l with progress < l / (2 n); L = CE_1 + further sum_(k > 1) CE_k

    Choose it over `gpt` for deep post-norm stacks, which the paper could hardly teach from their end alone. It writes
    as gpt does: heads of lower layers and of further tokens serve training alone. The paper's is `d=512 depth=64
    heads=8 dropout=0.55` with rows of 512 (235 million numbers in training, 219 to write), its small one `depth=12`
    (44). Its optimiser is SGD with a momentum of 0.99, here AdamW with the warm-up that post-norm wants. It reports the
    bits at the last position of a window alone: `kinformer evaluate DIR --stride 1 --full`.

    d: the width of the model.
    depth: blocks.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    hidden: the width of the feed-forward, 4 d unless given.
    every_position: learn at each position of a row, as everyone does since; False at the last alone, of further
        tokens at the last that has one.
    every_layer: lower layers predict too, until their part of the training is done.
    lower_schedule: the weight w_l of a lower layer: "step" is 1 until the layer stops, "linear" falls to 0 by then.
    shared_head: lower layers predict by the heads of the last; the paper's have heads of their own.
    targets: how many of the next tokens are predicted at each position, by a head each; 2 in the paper.
    further: the weight of each of them but the first.
    pattern: the expression of who reads whom, in every block.
    position: how it knows order, as in `gpt`.
    per_layer: added positions are added anew before each block, a table for each.
    norm: "post" as in the paper, or "pre".
    length: rows of the learned tables.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    check_in_range("further", further, 0, math.inf)
    if targets == 1:
        check_unused("targets=1", further=(further, 0.5))
    wiring = Wiring(d, heads, head_dim, position, length, per_layer=per_layer, norm=norm, dropout=dropout)

    def block() -> Layer:
        return wiring.block(wiring.attention(pattern, dropout=dropout), MLP(d, hidden, activation="relu"))

    body = wiring.stack([block() for _ in range(check_at_least("depth", depth, 1))])
    return AuxiliaryLM(
        vocab,
        d,
        body,
        targets=targets,
        weight=further,
        lower=every_layer,
        shared=shared_head,
        lower_schedule=lower_schedule,
        everywhere=every_position,
        position=wiring.added_position(),
        scale=wiring.scale,
        std=wiring.start,
        dropout=dropout,
    )


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "length": 64, "vocab": 11}
EXAMPLES = (
    lambda: al_rfou(**TINY),
    Example(
        lambda: al_rfou(**TINY, every_position=False, targets=1, shared_head=True, norm="pre", lower_schedule="linear"),
        breaks={"chunk": "the last position of each row that came is learned alone, so a cut row has more of them"},
    ),
    lambda: al_rfou(
        d=16,
        depth=2,
        heads=2,
        vocab=11,
        every_layer=False,
        pattern="Causal() & Band(9)",
        position="rotary",
        per_layer=False,
        head_dim=6,
        hidden=24,
    ),
)
