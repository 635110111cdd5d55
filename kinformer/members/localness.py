"""Localness: a Transformer whose lower layers predict where each token looks, and how far around."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option, check_whole_between
from kinformer.core.discover import member
from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.attention_forms import Form, build_form
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.biases.localness import FixedLocalness, LayerLocalness, Localness, QueryLocalness
from kinformer.nn.feedforward.mlp import MLP

Window = Literal["query", "layer", "fixed"]
WIDTH = 10.0


@member(
    recipe=Recipe(lr=1e-3),
    needs={
        "window": "local!=0",
        "width": "window=fixed and local!=0",
        "length": "position=learned",
        "smoothing": "form=encoder_decoder",
    },
)
def localness(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    window: Window = "query",
    width: float = WIDTH,
    local: int | None = None,
    form: Form = "encoder",
    position: Positions = "sinusoidal",
    norm: Norms = "pre",
    hidden: int | None = None,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
    smoothing: float = 0.0,
) -> LM | MLM | Seq2Seq:
    """Localness (Yang et al., 2018, arXiv:1810.10182): in lower layers a learned Gaussian window about a learned place.

    Choose it over `bert` or `transformer` where phrases matter; over `gaussian_transformer`, whose window lies on the
    token itself, where what belongs to it may stand elsewhere. Every pair is still scored, L^2 d, and its window added,
    so it costs more than `bert`, not less.

    d: the width of the model.
    depth: blocks, of each side.
    heads: heads of attention, each with places and windows of its own.
    head_dim: the width of a head, d / heads unless given.
    window: by "query", the paper's best, by "layer", from the mean of its keys, or "fixed".
    width: of a fixed window, in positions; two deviations.
    local: how many of the lowest blocks have windows: up to 3 unless given, which did best in the paper; 0 for none.
    form: an "encoder" that fills in hidden tokens; a "decoder", whose windows are of what was read so far, for text; or
        the paper's "encoder_decoder" for pairs, with windows in the encoder.
    position, norm: as in `transformer`.
    hidden: units of each feed-forward, 4 d unless given.
    length: the longest row, of learned positions alone.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    smoothing: of labels, in an encoder_decoder; the paper's is 0.1.
    """
    check_option("window", window, Window), check_at_least("depth", depth, 1)
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)
    lowest = min(3, depth) if local is None else check_whole_between("local", local, 0, depth)

    def bias() -> Localness:
        if window == "fixed":
            return FixedLocalness(heads, wiring.width, width)
        return (QueryLocalness if window == "query" else LayerLocalness)(heads, wiring.width)

    def block(n: int, pattern: Pattern, *across: Layer) -> Layer:
        own_bias = None if across or n >= lowest else bias()
        return wiring.block(wiring.attention(pattern, dropout=dropout, bias=own_bias), *across, MLP(d, hidden))

    def writes(n: int) -> Layer:
        across = (wiring.attention(Full(), cross=True, dropout=dropout),) if form == "encoder_decoder" else ()
        return block(n, Causal(), *across)

    return build_form(form, wiring, depth, vocab, reads=lambda n: block(n, Full()), writes=writes, smoothing=smoothing)


EXAMPLES = (
    lambda: localness(d=16, depth=2, heads=2, local=1, vocab=11),
    lambda: localness(d=16, depth=1, heads=2, window="layer", form="decoder", vocab=11),
    lambda: localness(d=16, depth=1, heads=2, window="fixed", width=4.0, form="encoder_decoder", vocab=11),
    lambda: localness(
        d=16,
        depth=1,
        heads=2,
        form="encoder_decoder",
        position="learned",
        norm="post",
        hidden=24,
        length=72,
        smoothing=0.1,
        vocab=11,
    ),
)
