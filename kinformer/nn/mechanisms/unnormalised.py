"""Unnormalised: weights exp(score) as they are, which need not sum to 1."""

import kinformer as kf
from kinformer.attend import impl_of, read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import at_least_float32
from kinformer.core.bias import Bias
from kinformer.core.checks import check_part, check_probability, check_scale
from kinformer.core.example import Example
from kinformer.core.key_value_mechanism import KeyValueMechanism, joined_wants
from kinformer.core.layer import Out
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.request import Request
from kinformer.nn.patterns.band import Band


class Unnormalised(KeyValueMechanism):
    """y_i = sum_j exp(scale q_i.k_j + bias_ij) v_j over the keys that the pattern allows; nothing is divided by a sum.

    Choose it where the bias is the log of a weight that is meant as it is, such as a density (`HardCodedGaussian`):
    near the ends of a row, and where a pattern shuts keys out, weights then sum to less. Choose `Softmax` for the same
    weights over their sum, and wherever scores are learned, since exp of them has no bound. It is softmax times its
    normaliser, so every executor serves it. Reads of parts of the keys add up and do not merge: it gives no lse.

    pattern: which keys each query may read.
    bias: the log of a weight, added to the scores.
    scale: the factor of the product, 1/sqrt(head_dim) unless given.
    dropout: the share of weights that training drops.
    impl: an executor by name; "auto" takes the cheapest.

    Errors: NoState from `start` where the pattern reads ahead. Source: the published code of You et al., 2020,
    arXiv:2005.00742.
    """

    def __init__(
        self, pattern: Pattern, bias: Bias, *, scale: float | None = None, dropout: float = 0.0, impl: str = "auto"
    ):
        super().__init__()
        self.pattern, self.dropout = check_pattern("pattern", pattern), check_probability("dropout", dropout)
        self.bias = check_part("bias", bias, Bias, "the log of a weight, such as HardCodedGaussian((-1, 1))")
        self.scale, self.lse, self.impl, self.wants = check_scale(scale), False, impl_of(impl), joined_wants(bias)

    def read(self, request: Request) -> Out[AttentionOutput]:
        output = read(request.replace(lse=True), self.impl)
        assert output.lse is not None
        return Out(AttentionOutput((at_least_float32(output.y) * output.lse.exp()[..., None]).to(output.y.dtype), None))


def _local() -> Unnormalised:
    return Unnormalised(Causal() & Band(3), kf.HardCodedGaussian((-1, 0)))


def _both_ways() -> Unnormalised:
    return Unnormalised(kf.Full(), kf.HardCodedGaussian((-1, 1), 2.0), scale=0.5)


NO_LSE = {"merge": "weights that are not divided by their sum add up over parts of the keys, where merging takes means"}
EXAMPLES = (Example(_local, breaks=NO_LSE), Example(_both_ways, breaks=NO_LSE))
