"""BLOOM: a decoder without position embeddings; scores fall with distance (ALiBi)."""

from functools import partial

from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.patterns.causal import Causal
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV


class NormalisedInput(Layer):
    """Layer that normalises the embedded tokens before the first block.

    It kept the large BLOOM from diverging.

    d: width.
    eps: epsilon of the norm.
    """

    def __init__(self, d: int, eps: float = 1e-5):
        super().__init__()
        self.d, self.norm = d, LayerNorm(d, eps=eps)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        return Out(self.norm(x), state)


@member(cost="L**2")
def bloom(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    vocab: int = 256,
    dropout: float = 0.0,
    eps: float = 1e-5,
    tie: bool = True,
) -> LM:
    """BLOOM (Le Scao et al., 2022, arXiv:2211.05100): a pre-norm decoder with ALiBi and normed embeddings.

    Choose it over `gpt` for rows longer than the training rows. It has no position table to run out of, and ALiBi
    (Press et al., 2021, arXiv:2108.12409) lowers the attention to distant tokens, in some heads faster than in others.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of attention weights and sublayer outputs.
    eps: epsilon of the norms.
    tie: use the embedding as the output head.

    Embeddings start with a standard deviation of 0.4 d^-1/2, which is 0.02 at width 400. The norm makes blocks blind
    to the size of the embeddings, and larger embeddings let the tied head repeat the input token.
    """

    norm = partial(LayerNorm, eps=eps)

    def block() -> PreNorm:
        projection = QKV(d, heads, head_dim=head_dim)
        attention = Attention(projection, Softmax(Causal(), ALiBi(heads), dropout=dropout, lse=False))
        return PreNorm(attention, MLP(d, activation="gelu_tanh"), norm=norm, dropout=dropout)

    blocks = [block() for _ in range(check_at_least("depth", depth, 1))]
    return LM(vocab, d, Stack([NormalisedInput(d, eps), *blocks], norm(d)), tie=tie, std=tied_start(d, 0.4))


NO_DISTANCE = (
    "ALiBi prefers near tokens but cannot single out a distance, and there are no positions. In the steps of the law "
    "it learns to copy from 1 back, but not from 3 back"
)
EXAMPLES = (
    Example(lambda: bloom(d=16, depth=2, heads=2, vocab=11), {"learns": NO_DISTANCE}),
    Example(lambda: bloom(d=16, depth=2, heads=2, vocab=11, eps=1e-3, tie=False), {"learns": NO_DISTANCE}),
)
