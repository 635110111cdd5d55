"""BERT: an encoder that predicts masked tokens."""

from functools import partial
from typing import Any

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.encoder import encoder
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.mlm import MLM
from kinformer.models.segments import Unit
from kinformer.models.segments import segments as segments_of
from kinformer.nn.biases.relative_segment import RelativeSegment
from kinformer.nn.initialise import Scheme, at_width, initialise


@member(cost="L**2", recipe=Recipe(lr=5e-4), needs={"length": "position=learned", "kinds": "segments=none"})
def bert(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    pattern: str | tuple[str, ...] = "Full()",
    position: Positions = "learned",
    norm: Norms = "post",
    drawn: int = 0,
    segments: Unit | None = None,
    length: int = 1024,
    kinds: int = 2,
    init: Scheme = "truncated_normal",
    vocab: int = 256,
    dropout: float = 0.0,
    hidden: int | None = None,
    mask: int | None = None,
    eps: float = 1e-12,
) -> MLM:
    """BERT (Devlin et al., 2018, arXiv:1810.04805): a post-norm encoder with full attention.

    Choose it for representations of complete texts; `gpt` generates text. It trains only on the prediction of masked
    tokens.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    pattern: expression for the tokens that each token reads, such as "Band(64)"; one for every block, or a tuple with
        one for each block from the bottom.
    position: position encoding; "learned" positions have `length` rows.
    norm: "post" as in the paper, or "pre".
    drawn: number of random tokens of the row that each token reads in addition. Each head of each block draws
        separately. With pattern "Band(0)" a token reads only itself and the drawn tokens.
    segments: None, or "sentence", "line" or "paragraph": attention scores then depend on whether two tokens are in the
        same one (XLNet, Yang et al., 2019, arXiv:1906.08237). It replaces `kinds`.
    length: longest row in tokens (learned positions).
    kinds: number of segment types, such as the paper's first and second sentence.
    init: initial weights (`nn.initialise`). "truncated_normal", as in the authors' code, is N(0, 0.02^2) within two
        standard deviations at width 768. Other widths scale it by d^-1/2; biases are 0. "library" is the
        initialisation of the other encoders here.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    hidden: width of the feed-forward layers; 4 d if None.
    mask: id of masked tokens, if it is one of the tokens, such as 103 in BERT's published vocabulary; `vocab` if None.
    eps: epsilon of the norms.
    """
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout, eps=eps)
    options: dict[str, Any] = {"kinds": kinds}
    if segments is not None:
        options = {"kinds": 1, "segment": partial(segments_of, unit=check_option("segments", segments, Unit))}
    bias = None if segments is None else partial(RelativeSegment, heads, wiring.width)
    body = encoder(wiring, depth, pattern, dropout, check_at_least("drawn", drawn, 0), bias, hidden)
    model = MLM(
        vocab,
        d,
        body,
        position=wiring.added_position(),
        scale=wiring.scale,
        eps=eps,
        dropout=dropout,
        mask=mask,
        **options,
    )
    return initialise(model, init, std=at_width(0.02, 768, d))


EXAMPLES = (
    lambda: bert(d=16, depth=2, heads=2, length=64, vocab=11),
    lambda: bert(d=16, depth=1, heads=2, length=64, hidden=24, kinds=0, mask=3, eps=1e-5, vocab=11),
    Example(
        lambda: bert(d=16, depth=2, heads=2, pattern="Band(0)", drawn=2, length=64, vocab=11),
        {"learns": "each token reads only itself and random keys, which are at a different distance for each token"},
    ),
    lambda: bert(d=16, depth=2, heads=2, segments="line", length=64, vocab=11),
    lambda: bert(
        d=16,
        depth=2,
        heads=2,
        pattern=("Band(2)", "Full()"),
        position="relative",
        norm="pre",
        segments="sentence",
        init="xavier",
        vocab=64,
    ),
    lambda: bert(d=16, depth=1, heads=2, position="tensor2tensor", segments="paragraph", init="library", vocab=11),
)
