"""Lending: softmax attention with weights that higher layers reuse."""

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

MATRIX = 1  # maximum number of queries for which the matrix of weights itself is sent up


class Lending(KeyValueMechanism):
    """First layer of a lazy block: softmax attention whose weights the `Reused` layers above it reuse.

    y = softmax(score + bias) v

    Choose `Softmax` if no layer reuses the weights. With a bias, or in a decoding step, the layer passes the matrix of
    weights to the layers above (`Out.up`). Otherwise it passes its queries and keys, and each `Reused` layer multiplies
    them again. With a fused kernel, this takes less time and memory than T x S stored weights per head.

    pattern: keys that each query may read.
    bias: bias that changes the scores.
    scale: factor of the dot product; 1/sqrt(head_dim) by default.
    dropout: fraction of weights that training drops in this layer; the weights for the layers above have no dropout.
        The paper recommends 0.
    lse: False omits the log-sum-exp and allows a faster executor (way to compute attention).

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys.

    Source: Ying et al., 2021, arXiv:2102.12702.
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
        # layers above use the default scale, so q takes the difference
        q = queries.q if self.scale is None else queries.q * (self.scale * queries.q.shape[-1] ** 0.5)
        return Out(read(request), up={"weights": PairFactors(q, keys.k, queries.pos, keys.pos, self.pattern)})


def _plain() -> Lending:
    return Lending(kf.Causal())


def _biased() -> Lending:
    return Lending(kf.Band(2), kf.T5(2), scale=0.5)


EXAMPLES = (_plain, _biased)
