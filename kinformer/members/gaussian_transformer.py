"""Gaussian Transformer: attention that falls off with the square of the distance, as fast as is learned."""

from kinformer.core.checks import check_flag
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
from kinformer.nn.biases.gaussian_prior import GaussianPrior
from kinformer.nn.feedforward.mlp import MLP


@member(recipe=Recipe(lr=1e-3), needs={"length": "position=learned", "smoothing": "form=encoder_decoder"})
def gaussian_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    by_head: bool = False,
    sigma: float = 5.0,
    own: float = 0.02,
    form: Form = "encoder",
    position: Positions = "sinusoidal",
    norm: Norms = "pre",
    hidden: int | None = None,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
    smoothing: float = 0.0,
) -> LM | MLM | Seq2Seq:
    """Gaussian Transformer (Guo et al., 2019, AAAI): scores lose |w (i - j)^2 + b|, with w and b learned in each layer.

    Choose it over `bert` for short texts and little data, where what is near matters most; over `bloom`, whose slopes
    are given, to let each layer find how far it looks. The paper's model reads pairs of sentences to tell what follows
    from what; here its encoder fills in hidden tokens, and the same blocks write. Every pair is scored: time grows as
    L^2 d, as `bert`'s does.

    d: the width of the model.
    depth: blocks, of each side.
    heads: heads of attention.
    head_dim: the width of a head, d / heads unless given.
    by_head: w and b for each head in place of the paper's, which a layer's heads share.
    sigma: the deviation at the start, in positions.
    own: what a token loses of its own score at the start, |b|.
    form: an "encoder", the paper's; a "decoder" of text; or an "encoder_decoder" for pairs.
    position, norm: as in `transformer`; without positions nothing tells before from after.
    hidden: units of each feed-forward, 4 d unless given.
    length: the longest row, of learned positions alone.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    smoothing: of labels, in an encoder_decoder.
    """
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)
    groups = heads if check_flag("by_head", by_head) else 1

    def block(pattern: Pattern, *across: Layer) -> Layer:
        prior = GaussianPrior(groups, sigma=sigma, own=own)
        return wiring.block(wiring.attention(pattern, dropout=dropout, bias=prior), *across, MLP(d, hidden))

    def writes(n: int) -> Layer:
        across = (wiring.attention(Full(), cross=True, dropout=dropout),) if form == "encoder_decoder" else ()
        return block(Causal(), *across)

    return build_form(form, wiring, depth, vocab, reads=lambda n: block(Full()), writes=writes, smoothing=smoothing)


EXAMPLES = (
    lambda: gaussian_transformer(d=16, depth=2, heads=2, vocab=11),
    lambda: gaussian_transformer(d=16, depth=1, heads=2, by_head=True, form="decoder", vocab=11),
    lambda: gaussian_transformer(
        d=16,
        depth=1,
        heads=2,
        form="encoder_decoder",
        position="rotary",
        norm="post",
        hidden=24,
        smoothing=0.1,
        vocab=11,
    ),
)
