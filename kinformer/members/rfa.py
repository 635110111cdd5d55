"""RFA: attention by random sines and cosines, whose past fades through a learned gate."""

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.checks import at_least, head_width
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.maps.random_fourier import RandomFourier
from kinformer.mechanisms.linear import GatedSum, LinearAttention, Sum
from kinformer.members.support.wiring import Wiring
from kinformer.models.lm import LM
from kinformer.norms.layer import LayerNorm
from kinformer.projections.qkv import QKV


@member
def rfa(
    d: int = 128, depth: int = 5, heads: int = 4, features: int = 64, gate: bool = True, length: int = 1024,
    lanes: bool = False, vocab: int = 256, dropout: float = 0.0, redraw: int | None = 1, tau: float = 1.0
) -> LM:
    """Random feature attention (Peng et al., 2021, arXiv:2103.02143), as a decoder.

    Choose it over `performer` where what is recent matters more. Pre-norm blocks; the past is a state of fixed size.

    d: the width of the model.
    depth: blocks; each draws directions of its own.
    heads: heads of attention.
    features: directions a head, whose sines and cosines estimate softmax's kernel of queries and keys at length 1.
    gate: each head learns what to forget at each token, the paper's RFA-Gate; False adds up all tokens, its RFA.
    length: the longest row it can read.
    lanes: train on consecutive text with the sums carried on; positions are then sinusoids, which do not end.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    redraw: other directions every so many steps of training; 1 is the paper's, None for never. With `lanes` they stay,
        because the sums that are carried on are of theirs.
    tau: divides the directions: the temperature at the start, which each head then learns.
    """

    width = head_width(d, heads)

    def block(seed: int) -> PreNorm:
        map = RandomFourier(heads, width, features, tau=tau, redraw=None if lanes else redraw, seed=seed)
        mechanism = LinearAttention(map, GatedSum() if gate else Sum())
        return PreNorm(Attention(QKV(d, heads), mechanism), MLP(d), dropout=dropout)

    body = Stack([block(n) for n in range(at_least("depth", depth, 1))], LayerNorm(d))
    made = Wiring(d, heads, position="sinusoidal" if lanes else "learned", length=length)
    return LM(vocab, d, body, position=made.added(), scale=made.scale, std=made.start, dropout=dropout, lanes=lanes)


EXAMPLES = (
    lambda: rfa(d=16, depth=2, heads=2, features=48, length=64, vocab=11),
    lambda: rfa(d=16, depth=1, heads=2, features=48, gate=False, redraw=None, length=64, vocab=11),
)
