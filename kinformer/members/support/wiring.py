"""Wiring: the keywords that gpt, bert and transformer share, as parts: positions, patterns, heads and norms."""

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
START = 0.02  # embeddings' standard deviation at the start where a head must not repeat what it reads, as in BERT


def tied_start(d: int, share: float = 0.75) -> float:
    """The standard deviation at which embeddings start that are the head too: the first loss is near ln(vocab).

    Smaller ones learn more slowly, as positions and what is added stand beside them; larger ones let the head repeat
    what it has read, sooner where norms hand the embedded token on.
    """
    return share * d**-0.5


@dataclass(frozen=True)
class Wiring:
    """How a Transformer knows positions, how wide its heads are and where its norms stand.

    d, heads: the width, and query heads.
    key_heads: heads of keys and values, `heads` unless given.
    head_dim: the width of a head, d / heads unless given.
    v_dim: the width of a value, that of a head unless given.
    position: "learned" and "sinusoidal" are added to what is embedded, as are sinusoids in the order and at the
        frequencies of the 2017 code, "tensor2tensor", and the paper's with all sines before all cosines, as
        Marian's models have them in Hugging Face's transformers, "sines_first"; "rotary" turns queries and keys,
        "alibi" slopes scores, "relative" adds Shaw's vectors to keys and values; "none" leaves only the pattern to
        tell order.
    length: rows of the learned table.
    per_layer: added positions are added anew before each block, a table for each.
    clip: the furthest distance with a relative vector of its own.
    values: relative vectors are added to values too.
    by_head: each head has relative vectors of its own.
    norm: "pre" is x + f(norm(x)) with one more norm at the end, "post" is norm(x + f(x)).
    dropout: of the embedded and of each sublayer's output.
    eps: of the norms.

    Errors: ValueError for sizes that do not divide, and for options that are none.
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
        """The width of a head."""
        return resolve_head_dim(self.d, self.heads, self.head_dim)

    def added_position(self) -> Position | None:
        """What is added to the embedded tokens."""
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
        """The factor of embedded tokens: the 2017 Transformer's sqrt(d) beside sinusoids, which would drown them."""
        return self.d**0.5 if self.position in SINUSOIDS else 1.0

    @property
    def start(self) -> float:
        """Embeddings' standard deviation at the start: the first loss is then near ln(vocab)."""
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
        """Softmax attention under a pattern; across sequences it knows no positions, whose distance says nothing.

        `bias` is added to the bias of positions, if there is one; `aggregation` joins heads, by a matrix by default.
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
        """The sublayers, each with its norm and the stream around it, told positions anew with `per_layer`."""
        kind = PreNorm if self.norm == "pre" else PostNorm
        block = kind(*layers, norm=self._norm, dropout=self.dropout)
        position = self._position() if self.per_layer else None
        return block if position is None else PositionedBlock(block, position)

    def stack(self, blocks: Iterable[Layer]) -> Stack:
        """The blocks, with the last norm that pre-norm blocks want."""
        return Stack(blocks, self._norm(self.d) if self.norm == "pre" else None)

    @property
    def _norm(self) -> Callable[[int], nn.Module]:
        return partial(LayerNorm, eps=self.eps)
