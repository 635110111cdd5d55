"""Low-rank and locality-constrained attention: narrow heads over the whole row, wide ones in a window."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.low_rank_band import Combine, LowRankBand
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.band import Band
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

Form = Literal["decoder", "encoder"]


@member(cost="L**2")
def low_rank_band(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    window: int = 16,
    rank: int | None = None,
    combine: Combine = "gate",
    form: Form = "decoder",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM | MLM:
    """Low-rank and band attention (Guo et al., 2019, TASLP 27(12)): narrow heads plus a window.

    y = g low + (1 - g) band; low: softmax of narrow queries and keys over the row; band: softmax in a window

    Choose it over `longformer_lm` if a distant token may matter, and over `gpt` for narrower keys in the cache. A
    training step (width 256, batch 1, on a CPU) is as fast as `gpt`'s at 16,384 tokens (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads; each has both parts.
    head_dim: width of a head; d / heads if None.
    window: reach of the band, in tokens; on both sides in an encoder.
    rank: width of the narrow queries and keys; a quarter of a head if None.
    combine: combination of the parts: a learned "gate" for each head, initially one half, or their "sum".
    form: "decoder" generates text; "encoder" predicts masked tokens. The paper's model is an encoder.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Differences: the paper leaves norms and positions open. This member has pre-norm blocks and learned positions.

    Source: Guo et al., 2019, doi:10.1109/TASLP.2019.2944078.
    """
    narrow = max(resolve_head_dim(d, heads, head_dim) // 4, 1) if rank is None else check_at_least("rank", rank, 1)
    near: Pattern = Band(check_at_least("window", window, 0))
    far: Pattern = Full()
    if check_option("form", form, Form) == "decoder":
        near, far = Causal() & near, Causal()

    def block() -> PreNorm:
        mechanism = LowRankBand(heads, near, far, narrow, combine=combine, dropout=dropout)
        return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism), MLP(d), dropout=dropout)

    body, position = (
        Stack([block() for _ in range(check_at_least("depth", depth, 1))], LayerNorm(d)),
        Learned(d, length),
    )
    if form == "encoder":
        return MLM(vocab, d, body, position=position, dropout=dropout)
    return LM(vocab, d, body, position=position, std=tied_start(d), dropout=dropout)


EXAMPLES = (
    lambda: low_rank_band(d=16, depth=1, heads=2, window=3, length=64, vocab=11),
    lambda: low_rank_band(d=16, depth=1, heads=2, window=2, combine="sum", form="encoder", length=64, vocab=11),
    lambda: low_rank_band(d=16, depth=1, heads=2, window=2, rank=3, length=64, vocab=11),
)
