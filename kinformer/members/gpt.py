"""GPT: the decoder-only Transformer."""

from typing import Literal

from kinformer.attention import Attention
from kinformer.biases.alibi import ALiBi
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.checks import multiple
from kinformer.core.expression import parse
from kinformer.core.position import Position
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.lm import LM
from kinformer.norms.layer import LayerNorm
from kinformer.positions.learned import Learned
from kinformer.positions.rotary import Rotary
from kinformer.positions.sinusoidal import Sinusoidal
from kinformer.projections.qkv import QKV


@member
def gpt(
    d: int = 128, depth: int = 5, heads: int = 4, head_dim: int | None = None, pattern: str = "Causal()",
    position: Literal["learned", "sinusoidal", "rotary", "alibi", "none"] = "learned", length: int = 1024,
    vocab: int = 256, dropout: float = 0.0
) -> LM:
    """GPT-2 (Radford et al., 2019): causal attention, pre-norm blocks, learned positions, tied embeddings.

    The baseline that every other decoder is compared with. `pattern` is the expression of who reads whom, such as
    "Causal() & Band(64)", in every block. `length` is the longest row it can read, where positions are learned.
    """

    def block() -> PreNorm:
        width = head_dim or multiple("d", d, "heads", heads) // heads
        bias = ALiBi(heads) if position == "alibi" else None
        mechanism = Softmax(parse(pattern), bias, dropout=dropout, lse=False)
        rotation = Rotary(width) if position == "rotary" else None
        attention = Attention(QKV(d, heads, head_dim=width, rotation=rotation), mechanism)
        return PreNorm(attention, MLP(d, activation="gelu_tanh"), dropout=dropout)

    absolute: Position | None = None
    if position in ("learned", "sinusoidal"):
        absolute = Learned(d, length) if position == "learned" else Sinusoidal(d)
    body = Stack([block() for _ in range(depth)], LayerNorm(d))
    return LM(vocab, d, body, position=absolute, dropout=dropout)


EXAMPLES = (lambda: gpt(d=16, depth=2, heads=2, length=64, vocab=11),)
