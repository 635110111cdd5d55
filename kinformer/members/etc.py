"""ETC: an encoder of long, structured texts, with a global token for each part of the text."""

from functools import partial
from typing import Any, Literal

from kinformer.core.checks import check_at_least, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.full import Full
from kinformer.models.contrastive_mlm import ContrastiveMLM
from kinformer.models.mlm import MLM
from kinformer.models.segments import segments
from kinformer.nn.aggregations.by_stream import OutByStream
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.biases.etc_labels import ETCLabels
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.global_tokens import GlobalTokens
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.losses.contrastive import Contrastive
from kinformer.nn.mechanisms.four_pieces import FourPieces
from kinformer.nn.mechanisms.global_softmax import GlobalSoftmax
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.pieces import Pieces
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.by_stream import ByStream
from kinformer.nn.projections.qkv import QKV


@member(needs={"unit": "tokens>1 and l2g!=~Full() or tokens>1 and contrast>0"})
def etc(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    radius: int = 32,
    tokens: int = 32,
    clip: int = 12,
    unit: Literal["sentence", "line", "paragraph"] = "sentence",
    projections: Literal["reader", "four", "shared", "own"] = "reader",
    outputs: Literal["separate", "shared"] = "separate",
    hard: tuple[Literal["g2g", "g2l", "l2g", "l2l"], ...] = (),
    g2g: str = "Full()",
    g2l: str = "Full()",
    l2g: str = "Full()",
    l2l: str = "Full()",
    order: bool = False,
    contrast: float = 0.0,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """ETC (Ainslie et al., 2020, arXiv:2004.08483): long tokens read `radius` either side, and all read global tokens.

    Choose it over `longformer` where the text has parts: each gets one of up to `tokens` global tokens, which see
    everything. Distances up to `clip`, and whether a part is one's own, are labels with learned vectors. No absolute
    positions: any length. Trained by hiding tokens. Feed-forward and norms serve both kinds of tokens; the authors'
    code has two norms after attention.

    d: width of a token.
    depth: blocks.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    radius: how many long tokens a long token reads on either side.
    tokens: the most global tokens; the last one stands for all parts that come after.
    clip: the furthest distance with a vector of its own.
    unit: the unit of a part; sentences in the paper. Training finds parts in the original text, so a hidden full stop
        still ends a sentence. `kinformer fill` finds them in the text with gaps. The search reads bytes, or the text
        that the tokens of a tokenizer add, such as the paper's word pieces.
    projections: "reader": who reads decides by what matrices keys are made (the paper's separate W for global and long;
        l2l and l2g share, g2g and g2l share, in the authors' code share_kv_projections). "four": keys of their own for
        each of the four pieces, the authors' code with nothing shared. "shared": one for all, their code's default.
        "own": the stream of the key itself decides, a form of this package.
    outputs: whether global and long tokens have output matrices of their own, as in the authors' code, or share one.
    hard: pieces in which a token reads its own part alone: the paper's g2l; in the authors' code l2g too; l2l and g2g
        are this package's.
    g2g, g2l, l2g, l2l: the paper's four binary matrices, as expressions of patterns such as "Band(3)" or "Tokens(1)";
        in g2l global tokens read long ones. Global and long tokens are numbered separately from 0. By default all
        pairs are read, in l2l within `radius`.
    order: True tells parts before from parts after.
    contrast: the weight of the paper's contrastive loss beside that of hidden tokens, which has the rest: the summary
        of a part that is wholly hidden must be nearest to that of the part read alone. An independent code has 0.2,
        for documents: `--data text=FILE,documents=blank` and its like give each a row. 0 unless given: a window of a
        text that is no documents begins and ends in the middle of parts, a step reads the batch twice, and in several
        processes a part is held against the rows of its own process alone, so that they do not learn as one would.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    pattern, width = Band(radius) | Tokens(tokens), resolve_head_dim(d, heads, head_dim)

    def mechanism() -> Mechanism:
        labels = ETCLabels(heads, width, tokens, clip, order=order)
        if projections == "reader":
            return GlobalSoftmax(pattern, Rows(tokens), labels, copied=False, dropout=dropout)
        if projections == "four":
            return FourPieces(pattern, tokens, labels, dropout=dropout)
        return Softmax(pattern | Rows(tokens), labels, dropout=dropout)

    def attention() -> Attention:
        shared = QKV(d, heads, head_dim=head_dim)
        projection = ByStream(tokens, shared, QKV(d, heads, head_dim=head_dim)) if projections == "own" else shared
        wide, long = (OutProjection(heads, width, d) for _ in range(2))
        join = OutByStream(tokens, wide, long) if outputs == "separate" else long
        return Attention(projection, mechanism(), aggregation=join)

    blocks = [PostNorm(attention(), MLP(d), dropout=dropout) for _ in range(check_at_least("depth", depth, 1))]
    matrices = {"g2g": parse(g2g), "g2l": parse(g2l), "l2g": parse(l2g), "l2l": parse(l2l)}
    limited = Pieces(tokens, **matrices) if set(matrices.values()) != {Full()} else None
    body = GlobalTokens(Stack(blocks), tokens, hard=hard, only=limited)
    options: dict[str, Any] = {"segment": partial(segments, unit=unit), "dropout": dropout}
    return ContrastiveMLM(vocab, d, body, contrast=contrast, **options) if contrast else MLM(vocab, d, body, **options)


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "radius": 3, "tokens": 3, "clip": 2, "vocab": 11}
SHARES = {"shard": Contrastive.across_rows}
EXAMPLES = (
    lambda: etc(**TINY),
    lambda: etc(**TINY, g2l="Band(0, 9)", l2g="Tokens(1) | Band(0)"),
    Example(
        lambda: etc(
            **TINY, unit="line", projections="four", outputs="shared", hard=("g2l", "l2g"), order=True, contrast=0.2
        ),
        breaks=SHARES,
    ),
    lambda: etc(**TINY, unit="paragraph", projections="shared", hard=("g2g", "l2l")),
    lambda: etc(**TINY, projections="own", g2g="Band(1)", l2l="Band(2, 0)"),
)
