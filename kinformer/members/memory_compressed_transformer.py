"""T-DMCA: a decoder with layers over a block and layers over the compressed row."""

from torch import Tensor

from kinformer.core.checks import check_at_least, check_unused, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.null_key import NullKey
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.block import Block
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.shorteners.conv_shortener import ConvShortener


@member(cost="L * block + L**2 / compress")
def memory_compressed_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    layers: str = "LM",
    block: int = 256,
    compress: int = 3,
    tied: bool = False,
    null: bool = False,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """T-DMCA (Liu et al., 2018, arXiv:1801.10198): local layers L and memory-compressed layers M.

    A token reads only its block of the row in layers L, and the whole compressed past in layers M. Choose it over `gpt`
    for long rows with a distant past that a summary can represent. An M layer reads and caches one key and value per
    `compress` tokens, and an L layer caches its block. A training step of an M layer (width 256, batch 1, on a CPU) is
    faster than `gpt`'s from about 1,500 tokens on, and 2.2 times as fast at 16,384 (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    layers: letters L and M from the bottom, repeated up to `depth`; LMLML in the paper.
    block: tokens in the block of an L layer, which read only one another; 256 in the paper.
    compress: kernel and stride of the convolutions of an M layer; 3 in the paper. A query reads only complete groups.
    tied: keys and values share one convolution, as in the published PyTorch package.
    null: add a learned key and value to M layers, as in that package. Without it the first tokens of a row read nothing
        there.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Differences: this member has pre-norm blocks and learned positions, and not the paper's mixture of experts.
    """
    width = resolve_head_dim(d, heads, head_dim)
    if not layers or set(layers) - {"L", "M"}:
        raise ValueError(
            f"layers={layers!r}: give the letters L (blocks of tokens) and M (compressed keys), such as 'LMLML'"
        )

    def mechanism(kind: str) -> Mechanism:
        if kind == "L":
            return Softmax(Causal() & Block(block), dropout=dropout, lse=False)
        convolved = ConvShortener(compress, width, heads=heads, tied=tied)
        return Shortened(
            Softmax(Causal(), dropout=dropout, lse=False), convolved, NullKey(heads, width) if null else None
        )

    kinds = [layers[n % len(layers)] for n in range(check_at_least("depth", depth, 1))]
    if "L" not in kinds:
        check_unused("no layer L", block=(block, 256))
    if "M" not in kinds:
        check_unused("no layer M", compress=(compress, 3), tied=(tied, False), null=(null, False))
    blocks = [
        PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism(kind)), MLP(d), dropout=dropout) for kind in kinds
    ]
    body = _Blocks(blocks, LayerNorm(d))
    return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout)


class _Blocks(Stack):
    """A stack that also loads runs of earlier versions, where all layers shared the projection of the first layer."""

    def upgrade(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Copy the first layer's projection to each layer that has none in a file of an earlier version."""
        for n in range(1, len(self.layers)):
            for name in ("weight", "bias"):
                first, copy = (f"{prefix}layers.{m}.layers.0.projection.qkv.{name}" for m in (0, n))
                if first in tensors:
                    tensors.setdefault(copy, tensors[first].clone())


EXAMPLES = (
    lambda: memory_compressed_transformer(d=16, depth=2, heads=2, layers="ML", block=8, length=64, vocab=11),
    lambda: memory_compressed_transformer(
        d=16, depth=1, heads=2, layers="M", compress=2, tied=True, null=True, length=64, vocab=11
    ),
)
