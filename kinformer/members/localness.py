"""Localness: a Transformer with lower layers that predict a window for each token."""

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
    cost="L**2",
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
    """Localness (Yang et al., 2018, arXiv:1810.10182): a learned Gaussian window in the lower layers.

    Both the centre and the width of the window are learned. Choose it over `bert` or `transformer` if phrases matter.
    Choose it over `gaussian_transformer`, which centres the window on the token, if related tokens may be elsewhere.
    Every pair still has a score, in L^2 d, and the window is added. So it costs more than `bert`, not less.

    d: model width.
    depth: number of blocks, on each side of an "encoder_decoder".
    heads: number of attention heads; each has its own centres and windows.
    head_dim: width of a head; d / heads if None.
    window: width of a window: predicted for each "query" (best in the paper), predicted once for a "layer" from the
        mean of its keys, or "fixed".
    width: width of a "fixed" window, in positions; two standard deviations.
    local: number of the lowest blocks with windows; up to 3 if None, the best in the paper. 0 means no windows.
    form: "encoder" predicts masked tokens. "decoder" generates text, with windows over the tokens so far.
        "encoder_decoder" is for pairs, with windows in the encoder, as in the paper.
    position: position encoding, as in `transformer`.
    norm: "pre" or "post".
    hidden: width of the feed-forward layer; 4 d if None.
    length: longest row in tokens (learned positions).
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    smoothing: label smoothing of an "encoder_decoder"; 0.1 in the paper.
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
