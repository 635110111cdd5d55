"""BERT: the encoder that fills in hidden tokens."""

from functools import partial
from typing import Any

from kinformer.biases.relative_segment import RelativeSegment
from kinformer.core.checks import at_least, one_of
from kinformer.core.example import Example
from kinformer.data.segments import Unit
from kinformer.data.segments import segments as segments_of
from kinformer.discover import member
from kinformer.initialise import Scheme, at_width, initialise
from kinformer.members.support.encoder import encoder
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.mlm import MLM
from kinformer.train.recipe import Recipe

EPS = 1e-12


@member(recipe=Recipe(lr=5e-4), needs={"length": "position=learned", "kinds": "segments=none"})
def bert(
    d: int = 128, depth: int = 5, heads: int = 4, head_dim: int | None = None,
    pattern: str | tuple[str, ...] = "Full()", position: Positions = "learned", norm: Norms = "post",
    drawn: int = 0, segments: Unit | None = None, length: int = 1024, kinds: int = 2,
    init: Scheme = "truncated_normal", vocab: int = 256, dropout: float = 0.0
) -> MLM:
    """BERT (Devlin et al., 2018, arXiv:1810.04805): every token reads every token, post-norm, learned positions.

    Choose it to understand text that is there as a whole. `pattern` is the expression of who reads whom, such as
    "Band(64)", in every block, or one for each from the bottom. Every token also reads `drawn` tokens that each head of
    each block draws from all of the row: beside "Band(0)" these are all that it reads. `position` is how it knows
    order; learned ones have `length` rows. `norm` is "post" as in the paper, or "pre". `kinds` is how many kinds of
    segments it tells apart, the paper's first and second sentence; with `segments` each head knows instead whether two
    tokens are of one sentence, line or paragraph of the text (XLNet's, Yang et al., 2019, arXiv:1906.08237). It is
    trained by hiding tokens alone. `init` is how weights start (`kinformer.initialise`): "truncated_normal" as in the
    authors' code, N(0, 0.02^2) within two deviations at a width of 768 and in proportion to d^-1/2 at others, biases
    0; "library" as in the other encoders here.
    """
    made = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout, eps=EPS)
    given: dict[str, Any] = {"kinds": kinds}
    if segments is not None:
        given = {"kinds": 1, "segment": partial(segments_of, unit=one_of("segments", segments, Unit))}
    bias = None if segments is None else partial(RelativeSegment, heads, made.width)
    body = encoder(made, depth, pattern, dropout, at_least("drawn", drawn, 0), bias)
    model = MLM(vocab, d, body, position=made.added(), scale=made.scale, eps=EPS, dropout=dropout, **given)
    return initialise(model, init, std=at_width(0.02, 768, d))


EXAMPLES = (
    lambda: bert(d=16, depth=2, heads=2, length=64, vocab=11),
    Example(
        lambda: bert(d=16, depth=2, heads=2, pattern="Band(0)", drawn=2, length=64, vocab=11),
        {"learns": "drawn tokens stand at other distances from each token"},
    ),
    lambda: bert(d=16, depth=2, heads=2, segments="line", length=64, vocab=11),
    lambda: bert(
        d=16, depth=2, heads=2, pattern=("Band(2)", "Full()"), position="relative", norm="pre", segments="sentence",
        init="xavier", vocab=64
    ),
    lambda: bert(d=16, depth=1, heads=2, position="tensor2tensor", segments="paragraph", init="library", vocab=11),
)
