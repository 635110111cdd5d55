"""BERT: the encoder that fills in hidden tokens."""

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

EPS = 1e-12


@member(recipe=Recipe(lr=5e-4), needs={"length": "position=learned", "kinds": "segments=none"})
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
) -> MLM:
    """BERT (Devlin et al., 2018, arXiv:1810.04805): every token reads every token, post-norm, learned positions.

    Choose it to understand text that is there as a whole. `pattern` is the expression of who reads whom, such as
    "Band(64)", for every block, or a tuple with one for each block from the bottom. Every token also reads `drawn`
    random tokens of its row, drawn separately by each head of each block; with "Band(0)" it reads only these and
    itself. `position` encodes order; learned positions have `length` rows. `norm` is "post" as in the paper, or "pre".
    `kinds` is the number of segment types, such as the paper's first and second sentence. With `segments` each head
    knows instead whether two tokens are in the same sentence, line or paragraph (XLNet, Yang et al., 2019,
    arXiv:1906.08237). It is trained only by predicting hidden tokens. `init` sets the initial weights
    (`nn.initialise`): "truncated_normal" as in the authors' code, N(0, 0.02^2) within two deviations at a width
    of 768, scaled by d^-1/2 at other widths, biases 0; "library" as in the other encoders here.
    """
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout, eps=EPS)
    options: dict[str, Any] = {"kinds": kinds}
    if segments is not None:
        options = {"kinds": 1, "segment": partial(segments_of, unit=check_option("segments", segments, Unit))}
    bias = None if segments is None else partial(RelativeSegment, heads, wiring.width)
    body = encoder(wiring, depth, pattern, dropout, check_at_least("drawn", drawn, 0), bias)
    model = MLM(
        vocab, d, body, position=wiring.added_position(), scale=wiring.scale, eps=EPS, dropout=dropout, **options
    )
    return initialise(model, init, std=at_width(0.02, 768, d))


EXAMPLES = (
    lambda: bert(d=16, depth=2, heads=2, length=64, vocab=11),
    Example(
        lambda: bert(d=16, depth=2, heads=2, pattern="Band(0)", drawn=2, length=64, vocab=11),
        {"learns": "drawn tokens stand at other distances from each token"},
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
