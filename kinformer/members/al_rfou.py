"""Al-Rfou: a deep character decoder that is trained with auxiliary losses."""

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
    cost="L**2",
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
    """Character Transformer (Al-Rfou et al., 2018, arXiv:1808.04444) with auxiliary losses.

    Lower layers predict too, and each position also predicts further tokens. In the loss, L_l is the loss of layer l of
    n, CE_k the cross-entropy of the token k ahead, and progress the finished fraction of the training.

    loss = L_n + sum of w_l L_l over each l with progress < l / (2 n); L = CE_1 + further sum_(k > 1) CE_k

    Choose it over `gpt` for deep post-norm stacks. The paper could hardly train them by the loss of the last layer
    only. It generates as `gpt` does: only training uses the heads of lower layers and of further tokens.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer; 4 d if None.
    every_position: train the prediction at each position of a row. False trains only the last position, and further
        tokens at the last position that has them as a target.
    every_layer: lower layers also predict, layer l until progress l / (2 n).
    lower_schedule: weight w_l of a lower layer: "step" keeps 1 until the layer stops, "linear" falls to 0 by then.
    shared_head: lower layers predict with the heads of the last layer; the paper's lower layers have their own heads.
    targets: number of next tokens that each position predicts, with one head each; 2 in the paper.
    further: loss weight of each predicted token after the first.
    pattern: expression for the positions that each token reads, in every block.
    position: position encoding, as in `gpt`.
    per_layer: add absolute positions again before each block, with a separate table for each.
    norm: "post" as in the paper, or "pre".
    length: rows of the learned position tables.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    The paper's model has `d=512 depth=64 heads=8 dropout=0.55` and rows of 512 tokens. It has 235 million parameters
    during training and 219 million during generation. The paper's small model has `depth=12` and 44 million. The paper
    reports only the bits at the last position of each window: `kinformer evaluate DIR --stride 1 --full`.

    Differences: the paper trains with SGD and a momentum of 0.99. The recipe here has AdamW and the warm-up that
    post-norm needs.
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
        breaks={"chunk": "the loss counts only the last position of a row in a call, and a row cut in chunks has more"},
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
