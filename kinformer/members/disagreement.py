"""Disagreement: a decoder with losses that keep its heads different during training."""

import math

from kinformer.core.checks import check_at_least, check_in_range, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.pattern_parser import parse
from kinformer.core.regulariser import Regulariser
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.losses.disagreement import OutputDisagreement, PositionDisagreement, SubspaceDisagreement
from kinformer.nn.mechanisms.regularised import Regularised
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV


@member(cost="L**2")
def disagreement(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    subspace: float = 0.0,
    position: float = 0.0,
    output: float = 1.0,
    pattern: str = "Causal()",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Disagreement regularisation (Li et al., 2018, arXiv:1810.10183), as a decoder.

    loss = -log p + subspace D_sub + position D_pos + output D_out, each term the mean over tokens, summed over layers

    Choose it over `gpt` if heads become similar. It generates as `gpt` does: only training computes the terms. The
    terms `output` and `subspace` cost heads head_dim per token. The term `position` costs heads per pair of tokens, and
    computes all attention weights a second time, in time L^2 d.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    subspace: loss weight of the similarity of the heads' values; 0 leaves a term out, also for the two weights below.
    position: loss weight of the similarity of the heads' attention weights.
    output: loss weight of the similarity of the heads' outputs. The paper has weight 1, and finds that this term helps
        most if it is the only one.
    pattern: expression for the tokens that each token reads, such as "Causal() & Band(64)", in every block.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Differences: the paper adds the terms to a translation Transformer. The blocks here are as in `gpt`.
    """
    for name, weight in (("subspace", subspace), ("position", position), ("output", output)):
        check_in_range(name, weight, 0, math.inf)
    width = resolve_head_dim(d, heads, head_dim)
    weighted = (subspace, SubspaceDisagreement), (position, PositionDisagreement), (output, OutputDisagreement)
    kinds: list[type[Regulariser]] = [kind for weight, kind in weighted if weight]

    def block() -> PreNorm:
        read = Softmax(parse(pattern), dropout=dropout, lse=any(kind.needs_lse for kind in kinds))
        mechanism = Regularised(read, *(kind() for kind in kinds)) if kinds else read
        attention = Attention(QKV(d, heads, head_dim=width), mechanism)
        return PreNorm(attention, MLP(d, activation="gelu_tanh"), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))], LayerNorm(d))
    weights = {kind.key: weight for weight, kind in weighted if weight}
    return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout, penalties=weights)


EXAMPLES = (
    lambda: disagreement(d=16, depth=2, heads=2, subspace=0.1, position=0.1, length=64, vocab=11),
    lambda: disagreement(d=16, depth=1, heads=2, position=0.1, pattern="Causal() & Band(5)", length=64, vocab=11),
)
