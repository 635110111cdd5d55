"""T-DMCA: a decoder whose layers read by turns their block of the row, and all of it compressed."""

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


@member
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
    """T-DMCA (Liu et al., 2018, arXiv:1801.10198): layers L read their block, layers M the whole past compressed.

    Choose it over `gpt` for long rows whose far past may be told in summary: an M layer reads and caches a key and a
    value for each `compress` tokens, an L layer those of a block. The paper's five layers are LMLML. Pre-norm, learned
    positions; the paper's mixture of experts is not here. A step of training of an M layer (width 256, batch 1, on a
    CPU) is faster than `gpt`'s from about 1,500 tokens on, at 16,384 2.2 times as fast (bench/README.md).

    d: width of a token.
    depth: layers.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    layers: L and M from the bottom, over again until there are `depth`.
    block: tokens of an L layer's block, which read each other and nothing else; the paper's 256.
    compress: kernel and stride of an M layer's convolutions; the paper's 3. A query reads groups that are whole.
    tied: keys and values share a convolution, as in the published PyTorch package.
    null: a learned key and value in M layers, as in that package; without them a row's first tokens read nothing there.
    length: the longest row.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    width = resolve_head_dim(d, heads, head_dim)
    if not layers or set(layers) - {"L", "M"}:
        raise ValueError(f"layers={layers!r}: give letters L (a block) and M (compressed), such as 'LMLML'")

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
        """Copy the first layer's projection to each layer for which the file has none."""
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
