"""GPT: the decoder-only Transformer."""

from typing import Any, Literal

from kinformer.core.discover import member
from kinformer.core.layer import Layer
from kinformer.members.support.window_sizes import one_per_layer
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.lm import LM
from kinformer.nn.feedforward.mlp import MLP, Activation
from kinformer.nn.initialise import Scheme, at_width, initialise

Paper = Literal["paper"]


@member(cost="L**2", needs={"length": "position=learned"})
def gpt(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    pattern: str | tuple[str, ...] = "Causal()",
    position: Positions = "learned",
    norm: Norms = "pre",
    length: int = 1024,
    per_layer: bool = False,
    init: Scheme | Paper = "paper",
    vocab: int = 256,
    dropout: float = 0.0,
    hidden: int | None = None,
    activation: Activation = "gelu_tanh",
    eps: float = 1e-5,
    tie: bool = True,
) -> LM:
    """GPT-2 (Radford et al., 2019): a pre-norm decoder with learned positions and tied embeddings.

    Choose it as the baseline for every other decoder.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    pattern: expression for the tokens that each token reads, such as "Causal() & Band(64)". Give one for every block,
        or a tuple with one for each block from the bottom, as in Sparse Transformers.
    position: position encoding; "learned" positions have `length` rows.
    norm: "pre" as in GPT-2, or "post" as in the first GPT (2018).
    length: longest row in tokens (learned positions).
    per_layer: add absolute positions again before each block, with a separate table for each (Al-Rfou et al., 2018,
        arXiv:1808.04444).
    init: initial weights (`kinformer.nn.initialise`), described below; "library" is the initialisation of the other
        decoders here.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    hidden: width of the feed-forward layers; 4 d if None.
    activation: nonlinearity of the feed-forward layers.
    eps: epsilon of the norms.
    tie: use the embedding as the output head.

    With pre-norm, init "paper" is "scaled_normal", as in GPT-2: N(0, 0.02^2) at width 768, scaled by d^-1/2 at other
    widths, with biases 0. The last map of each of the N = 2 depth branches is divided by sqrt(N). With post-norm, init
    "paper" is "normal", without that division, as in the first GPT.

    Source: Radford et al., 2019,
    https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf.
    """
    wiring = Wiring(d, heads, head_dim, position, length, per_layer=per_layer, norm=norm, dropout=dropout, eps=eps)

    def block(reads: str) -> Layer:
        return wiring.block(wiring.attention(reads, dropout=dropout), MLP(d, hidden, activation=activation))

    body = wiring.stack(block(reads) for reads in one_per_layer("pattern", pattern, depth))
    position_part, start = wiring.added_position(), wiring.start
    model = LM(vocab, d, body, position=position_part, scale=wiring.scale, tie=tie, std=start, dropout=dropout)
    scheme: Scheme = ("scaled_normal" if norm == "pre" else "normal") if init == "paper" else init
    return initialise(model, scheme, std=at_width(0.02, 768, d))


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "vocab": 11}
EXAMPLES = (
    lambda: gpt(**TINY, length=64),
    lambda: gpt(**TINY, length=64, hidden=24, activation="relu", eps=1e-3, tie=False),
    lambda: gpt(**TINY, position="rotary", norm="post", head_dim=6, pattern="Causal() & (Band(3) | Strided(3))"),
    lambda: gpt(
        d=16,
        depth=2,
        heads=2,
        vocab=11,
        length=64,
        per_layer=True,
        init="normal",
        pattern=("Causal() & Band(2)", "Causal()"),
    ),
)
