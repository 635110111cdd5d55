"""Lending: softmax attention that hands its weights up."""

from kinformer.core.bias import Bias
from kinformer.core.checks import a_pattern, a_probability, a_scale, if_given
from kinformer.core.keyed import Keyed, wants_of
from kinformer.core.layer import Out, PerPair
from kinformer.core.pattern import Pattern
from kinformer.core.read import Read
from kinformer.core.request import Request
from kinformer.core.scores import scores
from kinformer.mechanisms.support.whole import read_whole


class Lending(Keyed):
    """softmax(score + bias) v, and the weights go up, where `Reused` layers read by them: the first of a lazy block.

    Choose `Softmax` where nobody reuses them: this one makes the matrix of weights, T x S per head.

    pattern: which keys each query may read.
    bias: a change of the scores.
    scale: the factor of the product, 1/sqrt(head_dim) unless given.
    dropout: the share of weights that training drops; they go up whole. 0 is what the paper advises.

    Errors: NoState from `start` where the pattern reads ahead. Source: Ying et al., 2021, arXiv:2102.12702.
    """

    sends = frozenset({"weights"})

    def __init__(self, pattern: Pattern, bias: Bias | None = None, *, scale: float | None = None, dropout: float = 0.0):
        super().__init__()
        self.pattern, self.scale = a_pattern("pattern", pattern), a_scale(scale)
        self.dropout = a_probability("dropout", dropout)
        self.bias = if_given("bias", bias, Bias, "a bias, such as ALiBi(heads)")
        self.wants = wants_of(bias)

    def read(self, request: Request) -> Out[Read]:
        read, weights = read_whole(scores(request), request)
        return Out(read, up={"weights": PerPair(weights, request.queries.pos, request.keys.pos)})


def _plain() -> Lending:
    from kinformer.patterns.causal import Causal

    return Lending(Causal())


def _biased() -> Lending:
    from kinformer.biases.t5 import T5
    from kinformer.patterns.band import Band

    return Lending(Band(2), T5(2), scale=0.5)


EXAMPLES = (_plain, _biased)
