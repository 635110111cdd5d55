"""Gaussian Transformer: attention that decays with the squared distance, at a learned rate."""

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


@member(cost="L**2", recipe=Recipe(lr=1e-3), needs={"length": "position=learned", "smoothing": "form=encoder_decoder"})
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
    """Gaussian Transformer (Guo et al., 2019, AAAI): attention with a learned Gaussian window.

    Each score loses |w (i - j)^2 + b|, with w and b learned in each layer. Choose it over `bert` for short texts and
    little data, if near tokens matter most. Choose it over `bloom`, which has fixed slopes, if each layer should learn
    its own range. Every pair has a score, so time grows as L^2 d, as in `bert`.

    d: model width.
    depth: number of blocks, on each side of an "encoder_decoder".
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    by_head: learn w and b for each head; in the paper the heads of a layer share them.
    sigma: initial standard deviation, in positions.
    own: initial |b|, which is subtracted from the score of a token with itself.
    form: "encoder" as in the paper, "decoder" for text, or "encoder_decoder" for pairs.
    position: position encoding, as in `transformer`; with "none" nothing distinguishes earlier from later tokens.
    norm: "pre" or "post".
    hidden: width of the feed-forward layer; 4 d if None.
    length: longest row in tokens (learned positions).
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    smoothing: label smoothing of an "encoder_decoder".

    Differences: the paper's model reads pairs of sentences and predicts whether one follows from the other. The encoder
    here trains on the prediction of masked tokens, and the same blocks can form a decoder.

    Source: Guo et al., 2019, doi:10.1609/aaai.v33i01.33016489.
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
