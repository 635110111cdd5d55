"""Performer: softmax attention estimated by positive random features."""

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.maps.favor import FAVOR
from kinformer.mechanisms.linear import LinearAttention
from kinformer.models.lm import LM
from kinformer.norms.layer import LayerNorm
from kinformer.positions.learned import Learned
from kinformer.positions.sinusoidal import Sinusoidal
from kinformer.projections.qkv import QKV


@member
def performer(
    d: int = 128, depth: int = 5, heads: int = 4, features: int = 64, redraw: int | None = 1000, length: int = 1024,
    lanes: bool = False, vocab: int = 256, dropout: float = 0.0
) -> LM:
    """Performer (Choromanski et al., 2020, arXiv:2009.14794): FAVOR+, softmax attention at a linear price.

    Choose it over `linear_transformer` to stay near softmax: `features` orthogonal directions a head estimate its
    kernel, the more the better, and each block draws its own, anew every `redraw` steps of training. The past is a
    state of fixed size. Pre-norm blocks and learned positions; `length` is the longest row it can read. `lanes` trains
    on consecutive text with the sums carried on; positions are then sinusoids, which do not end.
    """

    def block(seed: int) -> PreNorm:
        favor = FAVOR(d // heads, features, redraw=redraw, seed=seed)
        return PreNorm(Attention(QKV(d, heads), LinearAttention(favor)), MLP(d), dropout=dropout)

    body = Stack([block(n) for n in range(depth)], LayerNorm(d))
    position = Sinusoidal(d) if lanes else Learned(d, length)
    return LM(vocab, d, body, position=position, dropout=dropout, lanes=lanes)


EXAMPLES = (lambda: performer(d=16, depth=2, heads=2, features=12, redraw=2, length=64, vocab=11),)
