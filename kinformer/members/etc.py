"""ETC: an encoder of long, structured texts, with a global token for each part of the text."""

from functools import partial
from typing import Literal

from kinformer.attention import Attention
from kinformer.biases.etc_labels import ETCLabels
from kinformer.blocks.post_norm import PostNorm
from kinformer.core.projection import Projection
from kinformer.data.segments import segments
from kinformer.depth.global_tokens import GlobalTokens
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.mlm import MLM
from kinformer.patterns.band import Band
from kinformer.patterns.rows import Rows
from kinformer.patterns.tokens import Tokens
from kinformer.projections.by_stream import ByStream
from kinformer.projections.qkv import QKV


@member
def etc(
    d: int = 128, depth: int = 4, heads: int = 4, radius: int = 32, tokens: int = 32, clip: int = 12,
    unit: Literal["sentence", "line", "paragraph"] = "line", streams: Literal["separate", "shared"] = "separate",
    hard: bool = False, order: bool = False, vocab: int = 256, dropout: float = 0.0
) -> MLM:
    """ETC (Ainslie et al., 2020, arXiv:2004.08483): long tokens read `radius` either side, and all read global tokens.

    Choose it over `longformer` where the text has parts: each `unit` gets one of up to `tokens` global tokens, which
    see everything, or with `hard` of the text their own part alone. Distances up to `clip`, and whether a part is
    one's own, are labels with learned vectors; `order` tells parts before from parts after. `streams` says whether
    global and long tokens share projections. No absolute positions: any length. Trained by hiding tokens.
    """

    def projection() -> Projection:
        if streams == "shared":
            return QKV(d, heads)
        return ByStream(tokens, QKV(d, heads), QKV(d, heads))

    def block() -> PostNorm:
        labels = ETCLabels(heads, d // heads, tokens, clip, order=order)
        mechanism = Softmax(Band(radius) | Tokens(tokens) | Rows(tokens), labels, dropout=dropout)
        return PostNorm(Attention(projection(), mechanism), MLP(d), dropout=dropout)

    body = GlobalTokens(Stack([block() for _ in range(depth)]), tokens, hard=hard)
    return MLM(vocab, d, body, segment=partial(segments, unit=unit), dropout=dropout)


EXAMPLES = (lambda: etc(d=16, depth=2, heads=2, radius=3, tokens=3, clip=2, vocab=11),)
