"""ETC: an encoder for long texts with a global token for each part of the text."""

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


@member(cost="L * (radius + tokens)", needs={"unit": "tokens>1 and l2g!=~Full() or tokens>1 and contrast>0"})
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
    """ETC (Ainslie et al., 2020, arXiv:2004.08483): local attention of long tokens, and global tokens.

    Long tokens, the paper's name for the tokens of the text, read `radius` tokens on either side. All tokens read the
    global tokens. Choose it over `longformer` if the text has parts: each part gets one of up to `tokens` global
    tokens, which see everything. Learned vectors encode distances up to `clip`, and whether a token belongs to the part
    of a global token. There are no absolute positions, so rows may have any length. The model trains on the prediction
    of masked tokens.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    radius: number of long tokens that a long token reads on either side.
    tokens: maximum number of global tokens; the last one represents all remaining parts.
    clip: largest distance with a vector of its own.
    unit: unit of a part; sentences in the paper. Training finds parts in the original text, so a hidden full stop still
        ends a sentence. `kinformer fill` finds parts in the text with gaps. Parts are found in the bytes, or in the
        text of the tokens of a tokenizer, such as the paper's word pieces.
    projections: matrices of the keys. With "reader" they depend on the kind of query: the paper's separate W for global
        and long queries. In the authors' code this is share_kv_projections: l2l and l2g share, g2g and g2l share. With
        "four" each of the four pieces of attention (query global or long, key global or long) has separate keys, as in
        the authors' code with nothing shared. With "shared" all pieces have one matrix, the default of that code. With
        "own" the matrices depend on whether the key is global or long, a form of this package.
    outputs: "separate" gives global and long tokens their own output matrices, as in the authors' code; "shared" has
        one matrix for both.
    hard: pieces in which a token reads only its own part of the text: g2l (global query, long key) in the paper, also
        l2g in the authors' code. For l2l and g2g this is an option of this package.
    g2g, g2l, l2g, l2l: the paper's four binary matrices, as pattern expressions such as "Band(3)" or "Tokens(1)"; in
        g2l global tokens read long ones. Global and long tokens are numbered separately from 0. The default reads all
        pairs, in l2l within `radius`.
    order: distinguish earlier parts from later parts.
    contrast: weight of the paper's contrastive loss; the loss of masked tokens has weight 1 - `contrast`. The summary
        of a wholly hidden part must be nearest to the summary of that part read separately. An independent
        implementation has 0.2. Use it for documents, such as `--data text=FILE,documents=blank`, which gives each
        document a row. A window of running text begins and ends within parts.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    With `contrast` a training step reads the batch twice. In several processes a part is compared only with the rows of
    its own process, so the result differs from training in one process.

    Differences: global and long tokens share one feed-forward layer and norms. The authors' code has two norms after
    attention.
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
