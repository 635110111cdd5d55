"""Guided attention: an encoder with a loss that pulls heads to patterns of trained models."""

import math
from typing import Any, Literal

from torch import Tensor

from kinformer.core.checks import check_at_least, check_in_range, check_unused, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.loss import FadingWeight
from kinformer.core.patterns.full import Full
from kinformer.core.training_recipe import Recipe
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.losses.guided_attention import Guide, GuidedAttention, Over
from kinformer.nn.mechanisms.regularised import Regularised
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

Name = Literal["next", "previous", "first", "delimiter", "period", "same"]
GUIDES: dict[str, Guide] = {
    "next": Band(0, 1) & ~Band(0),
    "previous": Band(1, 0) & ~Band(0),
    "same": Band(0),
    "first": Tokens(1),
    "delimiter": 1,
    "period": 2,
}


@member(
    cost="L**2",
    recipe=Recipe(lr=5e-4),
    needs={"guides": "share>0", "share": "guides", "alpha, hold, over": "guides and share>0"},
)
def guided_attention(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    guides: tuple[Name, ...] = ("next", "previous", "first", "delimiter", "period"),
    share: float = 0.5,
    alpha: float = 1.0,
    hold: float = 0.5,
    over: Over = "sum",
    delimiter: int = 10,
    period: int = 46,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """Guided attention (Deshpande and Narasimhan, 2020, arXiv:2010.02399), as an encoder.

    loss = -log p + alpha(progress) sum over layers and guided heads of |A - P|^2, the mean over tokens

    For a part of the training, the loss keeps the attention weights A of some heads near given patterns P (`guides`).
    Choose it over `bert` if training is slow to find a use for heads. The blocks are as in `bert`. Training computes
    all attention weights a second time, in time L^2 d, one block of queries at a time.

    d: model width.
    depth: number of blocks, post-norm.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    guides: names of the patterns, which the guided heads of each layer take in turn.
    share: fraction of the heads of a layer that are guided; half in the paper.
    alpha: initial loss weight of the guides. The paper's weight is for a sum over queries; its code has 100, for a
        mean.
    hold: fraction of the training with constant weight; the weight then falls linearly to 0 at the end.
    over: reduction of the squares, as in `losses.guided_attention.GuidedAttention`.
    delimiter, period: token ids of these two guides; a line feed and a full stop, as bytes.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """
    width, guided = resolve_head_dim(d, heads, head_dim), round(check_in_range("share", share, 0, 1) * heads)

    check_in_range("alpha", alpha, 0, math.inf)
    if not guided:
        check_unused("no guided head", alpha=(alpha, 1.0), hold=(hold, 0.5), over=(over, "sum"))
    heads_of = {guides[n % len(guides)] for n in range(depth * guided)} if guides else set()
    for name, values in {"delimiter": (delimiter, 10), "period": (period, 46)}.items():
        if name not in heads_of:
            check_unused(f"{depth * guided} guided heads that all have other guides", **{name: values})

    def labels(tokens: Tensor, _: object) -> Tensor:
        return (tokens == delimiter).long() + 2 * (tokens == period)

    def block(n: int) -> PostNorm:
        # each layer continues the list of guides from the layer below, so that few heads cover all guides
        turn = [GUIDES[guides[(n * guided + h) % len(guides)]] for h in range(guided)] if guides else []
        read = Softmax(Full(), dropout=dropout)
        guides_of_heads = (*turn, *[None] * (heads - len(turn)))
        mechanism = Regularised(read, GuidedAttention(guides_of_heads, over)) if turn else read
        return PostNorm(Attention(QKV(d, heads, head_dim=width), mechanism), MLP(d), dropout=dropout)

    body = Stack([block(n) for n in range(check_at_least("depth", depth, 1))])
    weights = {GuidedAttention.key: FadingWeight(alpha, hold)} if guides and guided else {}
    options: dict[str, Any] = {"segment": labels, "of_read": True, "dropout": dropout, "penalties": weights}
    return MLM(vocab, d, body, position=Learned(d, length), **options)


SHARES = {"shard": "the penalty is a mean over tokens, the loss a mean over masked tokens; processes have other ratios"}
EXAMPLES = (
    Example(
        lambda: guided_attention(
            d=16, depth=3, heads=2, guides=("next", "delimiter", "period"), length=64, vocab=11, delimiter=1, period=2
        ),
        SHARES,
    ),
    Example(
        lambda: guided_attention(
            d=16, depth=2, heads=4, guides=("previous", "first", "same"), share=0.75, over="mean", length=64, vocab=11
        ),
        SHARES,
    ),
)
