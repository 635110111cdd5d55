"""GatedXL: builder of the gated Transformer-XL layers of the member gtrxl."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from kinformer.core.checks import check_at_least, check_option, check_probability, check_unused, resolve_head_dim
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.core.residual_block import Join, ResidualBlock
from kinformer.nn.attention import Attention
from kinformer.nn.biases.transformer_xl import TransformerXL
from kinformer.nn.blocks.gate import BiasedGate
from kinformer.nn.blocks.gru_gate import GRUGate
from kinformer.nn.blocks.highway_gate import HighwayGate
from kinformer.nn.blocks.identity_map import IdentityMap
from kinformer.nn.blocks.input_gate import InputGate
from kinformer.nn.blocks.output_gate import OutputGate
from kinformer.nn.blocks.post_norm import NormLast
from kinformer.nn.blocks.sigtanh_gate import SigTanhGate
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.hidden import Hidden
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.normed import Normed, NormedKeys
from kinformer.nn.projections.qkv import QKV

GateName = Literal["gru", "input", "output", "highway", "sigtanh", "residual", "post_norm"]
NormedName = Literal["both", "keys"]
B_G = 2.0  # initial bias of the gates in the paper
BIASED: dict[GateName, type[BiasedGate]] = {
    "gru": GRUGate,
    "output": OutputGate,
    "highway": HighwayGate,
    "sigtanh": SigTanhGate,
}


@dataclass(frozen=True)
class GatedXL:
    """Builder of a Transformer-XL with gates instead of residual sums; `stack()` makes the layers.

    The layers map width d to width d. They have no embedding, no head and no norm at the end, as in the paper. In
    training (`.train()`), the state is a memory of hidden states, which gets no gradients. In `.eval()`, it is an
    equivalent cache of keys and values.

    d, heads, head_dim: model width, number of query heads, and width of a head; d / heads if None.
    depth: number of blocks of attention and a feed-forward layer.
    segment, memory: number of positions of a segment, and of earlier positions that each of its positions reads too.
    gate: "gru", "input", "output", "highway" or "sigtanh"; "residual" is TrXL-I, x + relu(f(norm(x))); "post_norm" is
        TrXL, norm(x + f(x)).
    b_g: initial bias of the gates "gru", "output", "highway" and "sigtanh".
    hidden: width of the feed-forward layer; 4 d if None.
    dropout: dropout probability of attention weights, feed-forward units and sublayer outputs.
    normed: "both" normalises the inputs of queries and keys, as in the paper; "keys" normalises only the inputs of
        keys, as in DI-engine's GTrXL. No effect with gate="post_norm", which normalises the output of a sublayer.

    Errors: ValueError for sizes that do not divide, for an unknown gate, and for `b_g` with a gate without a bias.
    """

    d: int
    depth: int
    heads: int
    segment: int
    memory: int
    gate: GateName = "gru"
    b_g: float = B_G
    head_dim: int | None = None
    hidden: int | None = None
    dropout: float = 0.0
    normed: NormedName = "both"

    def __post_init__(self) -> None:
        check_at_least("depth", self.depth, 1)
        check_probability("dropout", self.dropout)
        check_option("normed", self.normed, NormedName)
        if check_option("gate", self.gate, GateName) not in BIASED:
            check_unused(f"gate={self.gate!r}, which has no bias", b_g=(self.b_g, B_G))

    def stack(self) -> Stack:
        """Build the blocks; they share the vectors u and v of relative distances, as in Transformer-XL."""
        width = resolve_head_dim(self.d, self.heads, self.head_dim)
        biases = TransformerXL.make_sharing(self.depth, self.heads, width, self.d)
        return Stack(self._block(bias) for bias in biases)

    def _block(self, bias: TransformerXL) -> ResidualBlock:
        d, behind = self.d, self.gate == "post_norm"
        projection = QKV(d, self.heads, head_dim=self.head_dim, bias=False)
        mechanism = Softmax(Causal() & Segment(self.segment, self.memory), bias, dropout=self.dropout)
        kind = Normed if self.normed == "both" else NormedKeys
        reads = projection if behind else kind(projection, LayerNorm(d))
        attention = Attention(reads, mechanism, memory=Hidden(self.segment, self.memory))
        mlp = MLP(d, self.hidden, activation="relu", dropout=self.dropout)
        # attention norms memory and input together
        norms = [LayerNorm(d) if behind else nn.Identity(), LayerNorm(d)]
        make = self._join()
        return ResidualBlock([attention, mlp], [make(), make()], norms)

    def _join(self) -> Callable[[], Join]:
        """Return a function that makes the join of a sublayer with its input."""
        if self.gate in BIASED:
            return partial(BIASED[self.gate], self.d, self.b_g, self.dropout)
        if self.gate == "input":
            return partial(InputGate, self.d, self.dropout)
        return partial(IdentityMap if self.gate == "residual" else NormLast, self.dropout)
