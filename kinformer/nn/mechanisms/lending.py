"""Lending: softmax attention whose weights higher layers reuse."""

import kinformer as kf
from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.bias import Bias
from kinformer.core.checks import check_optional_part, check_probability, check_scale
from kinformer.core.key_value_mechanism import KeyValueMechanism, joined_wants
from kinformer.core.layer import Out, PairFactors, PerPair
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.request import Request
from kinformer.core.score_matrix import scores
from kinformer.nn.mechanisms.read_whole_matrix import read_whole

MATRIX = 1  # queries of a call for which the matrix of weights itself goes up


class Lending(KeyValueMechanism):
    """softmax(score + bias) v, the first layer of a lazy block: `Reused` layers above it reuse its weights.

    Choose `Softmax` if no layer reuses the weights. With a bias, and in a decoding step, the layer sends the matrix of
    weights up. Else it sends queries and keys up: a fused kernel that multiplies them again takes less time and memory
    than T x S stored numbers per head.

    pattern: which keys each query may read.
    bias: a change of the scores.
    scale: the factor of the product, 1/sqrt(head_dim) unless given.
    dropout: the share of weights that training drops here; the weights sent up have no dropout. The paper advises 0.
    lse: False gives up the log-sum-exp for a faster executor.

    Errors: NoState from `start` where the pattern reads ahead. Source: Ying et al., 2021, arXiv:2102.12702.
    """

    sends = frozenset({"weights"})

    def __init__(
        self,
        pattern: Pattern,
        bias: Bias | None = None,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
        lse: bool = True,
    ):
        super().__init__()
        self.pattern, self.scale, self.lse = check_pattern("pattern", pattern), check_scale(scale), lse
        self.dropout = check_probability("dropout", dropout)
        self.bias = check_optional_part("bias", bias, Bias, "a bias, such as ALiBi(heads)")
        self.wants = joined_wants(bias)

    def read(self, request: Request) -> Out[AttentionOutput]:
        queries, keys = request.queries, request.keys
        if self.bias is not None or queries.q.shape[2] <= MATRIX:
            output, weights = read_whole(scores(request), request)
            lse = output.lse if self.lse else None
            return Out(output._replace(lse=lse), up={"weights": PerPair(weights, queries.pos, keys.pos, self.pattern)})
        # layers above scale products as usual
        q = queries.q if self.scale is None else queries.q * (self.scale * queries.q.shape[-1] ** 0.5)
        return Out(read(request), up={"weights": PairFactors(q, keys.k, queries.pos, keys.pos, self.pattern)})


def _plain() -> Lending:
    return Lending(kf.Causal())


def _biased() -> Lending:
    return Lending(kf.Band(2), kf.T5(2), scale=0.5)


EXAMPLES = (_plain, _biased)
