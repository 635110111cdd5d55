"""Wiring: builds positions, attention and norms from keywords that gpt, bert and transformer share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from kinformer.core.aggregation import Aggregation
from kinformer.core.bias import Bias, Plus
from kinformer.core.checks import check_at_least, check_option, check_probability, check_unused, resolve_head_dim
from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse
from kinformer.core.position import Position
from kinformer.nn.attention import Attention
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.relative import Relative
from kinformer.nn.blocks.positioned_block import PositionedBlock
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.positions.sinusoidal import Sinusoidal
from kinformer.nn.projections.qkv import QKV

Positions = Literal["learned", "sinusoidal", "tensor2tensor", "sines_first", "rotary", "alibi", "relative", "none"]
SINUSOIDS = ("sinusoidal", "tensor2tensor", "sines_first")
Norms = Literal["pre", "post"]
START = 0.02  # initial standard deviation of embeddings, as in BERT, if an untrained head must not repeat its input


def tied_start(d: int, share: float = 0.75) -> float:
    """Return the initial standard deviation of embeddings that are shared with the head: share * d**-0.5.

    The first loss is then near ln(vocab). Smaller embeddings learn more slowly, because positions and sublayer outputs
    outweigh them. Larger embeddings make the untrained head repeat its input. This happens at smaller embeddings if the
    norms pass the embedded token on to the head, as in post-norm blocks.

    d: model width.
    share: factor of d**-0.5; smaller for models that repeat their input at smaller embeddings.
    """
    return share * d**-0.5


@dataclass(frozen=True)
class Wiring:
    """Builder of the parts of a Transformer: positions, attention layers, blocks and stacks.

    d, heads: model width and number of query heads.
    key_heads: number of heads of keys and values; `heads` if None.
    head_dim: width of a head; d / heads if None.
    v_dim: width of a value head; the width of a head if None.
    position: encoding of positions. "learned" and "sinusoidal" vectors are added to the embedded tokens. So are the
        sinusoids of "tensor2tensor", in the order and at the frequencies of the 2017 code. With "sines_first", all
        sines of the paper come before all cosines, as in Marian's models in Hugging Face transformers. With "rotary",
        queries and keys are rotated; "alibi" adds a slope times the distance to scores. "relative" adds Shaw's learned
        vectors of distances to keys and values. With "none", only the pattern encodes order.
    length: number of learned positions.
    per_layer: True adds positions again before each block, with its own table for each block.
    clip: largest distance with its own relative vector.
    values: True adds relative vectors to values too.
    by_head: True gives each head its own relative vectors.
    norm: "pre" is x + f(norm(x)) with one more norm at the end; "post" is norm(x + f(x)).
    dropout: dropout probability of embeddings and sublayer outputs.
    eps: epsilon of the norms.

    Errors: ValueError for sizes that do not divide, for unknown options, and for options without effect.
    """

    d: int
    heads: int
    head_dim: int | None = None
    position: Positions = "none"
    length: int = 1024
    per_layer: bool = False
    clip: int = 16
    values: bool = True
    by_head: bool = False
    norm: Norms = "pre"
    dropout: float = 0.0
    eps: float = 1e-5
    key_heads: int | None = None
    v_dim: int | None = None

    def __post_init__(self) -> None:
        check_option("position", self.position, Positions)
        check_option("norm", self.norm, Norms)
        check_at_least("length", self.length, 1)
        if self.per_layer and self.position not in ("learned", *SINUSOIDS):
            raise ValueError(
                f"position={self.position!r} already acts in every layer; leave out per_layer, or choose 'learned' or "
                "sinusoidal positions"
            )
        if self.position != "relative":
            check_unused(f"position={self.position!r}", by_head=(self.by_head, False))
        check_probability("dropout", self.dropout)

    @property
    def width(self) -> int:
        """Width of a head."""
        return resolve_head_dim(self.d, self.heads, self.head_dim)

    def added_position(self) -> Position | None:
        """Return the position that is added to embedded tokens, or None."""
        return None if self.per_layer else self._position()

    def _position(self) -> Position | None:
        if self.position == "learned":
            return Learned(self.d, self.length)
        if self.position == "tensor2tensor":
            return Sinusoidal(self.d, layout="concat")
        if self.position == "sines_first":
            return Sinusoidal(self.d, layout="concat", frequencies="paper")
        return Sinusoidal(self.d) if self.position == "sinusoidal" else None

    @property
    def scale(self) -> float:
        """Factor of embedded tokens: sqrt(d) with sinusoids, as in the 2017 Transformer, otherwise 1.

        Without this factor, sinusoids would outweigh the embeddings.
        """
        return self.d**0.5 if self.position in SINUSOIDS else 1.0

    @property
    def start(self) -> float:
        """Initial standard deviation of the embeddings, such that the first loss is near ln(vocab)."""
        return tied_start(self.d, 0.75 if self.norm == "pre" and self.position not in SINUSOIDS else 0.5)

    def attention(
        self,
        pattern: Pattern | str,
        *,
        cross: bool = False,
        dropout: float = 0.0,
        bias: Bias | None = None,
        aggregation: Aggregation | None = None,
    ) -> Attention:
        """Build a layer of softmax attention with this position encoding.

        pattern: pattern of the keys that each query reads, or its text form.
        cross: True for attention over a source. It has no position encoding, because distances between two sequences
            have no meaning.
        dropout: dropout probability of attention weights.
        bias: further bias of scores, in addition to the bias of positions.
        aggregation: part that combines the outputs of the heads; a matrix by default.
        """
        pattern = parse(pattern) if isinstance(pattern, str) else pattern
        rotation = Rotary(self.width) if self.position == "rotary" and not cross else None
        biases = [part for part in (None if cross else self._bias(pattern), bias) if part is not None]
        total_bias = Plus(*biases) if len(biases) > 1 else biases[0] if biases else None
        mechanism = Softmax(pattern, total_bias, dropout=dropout, lse=False)
        projection = QKV(
            self.d, self.heads, key_heads=self.key_heads, head_dim=self.width, v_dim=self.v_dim, rotation=rotation
        )
        return Attention(projection, mechanism, cross=cross, aggregation=aggregation)

    def _bias(self, pattern: Pattern) -> ALiBi | Relative | None:
        if self.position == "alibi":
            return ALiBi(self.heads)
        if self.position != "relative":
            return None
        heads = self.heads if self.by_head else None
        reach = pattern.reach()
        return Relative(self.width, self.clip, value_dim=self.v_dim, values=self.values, heads=heads, reach=reach)

    def block(self, *layers: Layer) -> Layer:
        """Build a block of sublayers with norms and residual connections, and with positions if `per_layer`.

        layers: the sublayers in order.
        """
        kind = PreNorm if self.norm == "pre" else PostNorm
        block = kind(*layers, norm=self._norm, dropout=self.dropout)
        position = self._position() if self.per_layer else None
        return block if position is None else PositionedBlock(block, position)

    def stack(self, blocks: Iterable[Layer]) -> Stack:
        """Build a stack of blocks; pre-norm blocks get one more norm at the end.

        blocks: the blocks from the bottom.
        """
        return Stack(blocks, self._norm(self.d) if self.norm == "pre" else None)

    @property
    def _norm(self) -> Callable[[int], nn.Module]:
        return partial(LayerNorm, eps=self.eps)
