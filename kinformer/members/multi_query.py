"""Multi-query attention: a decoder with one head of keys and values and a small cache."""

from typing import Literal

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.layer import Layer
from kinformer.members.support.wiring import Wiring
from kinformer.models.lm import LM
from kinformer.nn.feedforward.mlp import MLP


@member(cost="L**2", needs={"length": "position=learned"})
def multi_query(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    key_heads: int = 1,
    head_dim: int | None = None,
    hidden: int | None = None,
    pattern: str = "Causal()",
    position: Literal["learned", "sinusoidal", "rotary", "alibi", "none"] = "learned",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Multi-query attention (Shazeer, 2019, arXiv:1911.02150), as a decoder.

    All query heads read the same head of keys and values. Choose it over `gpt` if decoding must be cheap: its cache is
    `heads` times smaller. Otherwise it is like `gpt`.

    d: model width.
    depth: number of blocks.
    heads: number of query heads.
    key_heads: number of heads of keys and values; 1 in the paper. With more, groups of query heads share one (Ainslie
        et al., 2023, arXiv:2305.13245).
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer. If None, it is larger by the parameters that keys and values save, as in
        the paper. The model is then as large as one with a head of keys for every query head.
    pattern: expression for the tokens that each token reads, such as "Causal() & Band(64)", in every block.
    position: position encoding.
    length: longest row in tokens (learned positions).
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """
    wiring = Wiring(d, heads, head_dim, position, length, dropout=dropout, key_heads=key_heads)
    # a unit has 2 d weights, as does a column of keys and values
    units = 4 * d + (heads - key_heads) * wiring.width if hidden is None else hidden

    def block() -> Layer:
        return wiring.block(wiring.attention(pattern, dropout=dropout), MLP(d, units, activation="gelu_tanh"))

    body = wiring.stack(block() for _ in range(check_at_least("depth", depth, 1)))
    return LM(vocab, d, body, position=wiring.added_position(), scale=wiring.scale, std=wiring.start, dropout=dropout)


EXAMPLES = (
    lambda: multi_query(d=16, depth=2, heads=2, length=64, vocab=11),
    lambda: multi_query(d=16, depth=1, heads=4, key_heads=2, head_dim=6, hidden=20, position="rotary", vocab=11),
    lambda: multi_query(d=16, depth=1, heads=2, pattern="Causal() & Band(5)", position="rotary", vocab=11),
)
