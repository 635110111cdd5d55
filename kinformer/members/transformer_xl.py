"""Transformer-XL: segments that read the hidden states of earlier segments."""

from kinformer.core.checks import check_at_least, check_flag, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.core.training_recipe import Recipe
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.biases.transformer_xl import SHARED, TransformerXL
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.initialise import Scheme, at_width, initialise, with_embeddings
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.hidden import Hidden
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV


@member(cost="L * (segment + memory)", recipe=Recipe(lr=1e-3, warmup=0.2))
def transformer_xl(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    segment: int = 64,
    memory: int = 64,
    same_length: bool = False,
    clamp: int | None = None,
    init: Scheme = "library",
    std: float | None = None,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Transformer-XL (Dai et al., 2019, arXiv:1901.02860): segments with a memory of hidden states.

    Choose it for text that is too long for full attention. Each layer reads its segment and the tokens before it in the
    memory, so `depth` layers see depth times as far. The model trains on consecutive text and carries its memory from
    batch to batch. It has relative positions and post-norm blocks.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    segment: tokens of a segment.
    memory: tokens before the segment that each layer also reads. It is not part of the weights, so the weights of a
        trained model also fit a longer memory.
    same_length: each token reads exactly `memory` keys, itself included, at every position of its segment. Like
        `clamp`, it is an option of the authors' code for evaluation.
    clamp: largest distance; larger distances count as this one.
    init: initial weights (`nn.initialise`), described below.
    std: initial standard deviation of embeddings; the value of `init` if None.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights, feed-forward units and sublayer outputs.

    The paper states no initial weights. Its code has init "normal": N(0, 0.02^2) at width 410, scaled by d^-1/2 at
    other widths, with biases 0. With "library" embeddings start at the 0.02 of that code, and linear maps start as in
    PyTorch. Embeddings are multiplied by sqrt(d), so in a post-norm stack the logit of the input token itself starts at
    about d times their standard deviation.
    """
    biases = TransformerXL.make_sharing(
        check_at_least("depth", depth, 1), heads, resolve_head_dim(d, heads, head_dim), d, clamp
    )
    if check_flag("same_length", same_length):
        check_at_least("memory", memory, 1)
    pattern = Causal() & (Band(memory - 1) if same_length else Segment(segment, memory))

    def block(bias: TransformerXL) -> PostNorm:
        mechanism = Softmax(pattern, bias, dropout=dropout)
        projection = QKV(d, heads, head_dim=head_dim, bias=False)
        attention = Attention(projection, mechanism, memory=Hidden(segment, memory))
        return PostNorm(attention, MLP(d, activation="relu", dropout=dropout), dropout=dropout)

    model = LM(vocab, d, Stack(block(bias) for bias in biases), scale=d**0.5, std=0.02, dropout=dropout, lanes=True)
    return with_embeddings(initialise(model, init, std=at_width(0.02, 410, d)), std)


EXAMPLES = (
    Example(lambda: transformer_xl(d=16, depth=2, heads=2, segment=5, memory=3, vocab=11), shares=SHARED),
    Example(
        lambda: transformer_xl(d=16, depth=2, heads=2, segment=4, memory=5, same_length=True, vocab=11), shares=SHARED
    ),
    lambda: transformer_xl(
        d=16, depth=1, heads=2, segment=5, memory=3, clamp=4, init="truncated_normal", std=0.1, vocab=11
    ),
)
