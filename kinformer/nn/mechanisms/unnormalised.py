"""Unnormalised: attention with weights exp(score) that are not divided by their sum."""

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
    """Attention with weights exp(score) that are not divided by their sum.

    y_i = sum_j exp(scale q_i.k_j + bias_ij) v_j

    The sum runs over the keys that the pattern allows. Choose it if the bias is the log of a weight that should be used
    unchanged, such as a density (`HardCodedGaussian`). Near the ends of a row, and if a pattern masks keys, the weights
    then have a smaller sum. Choose `Softmax` for normalised weights, and for learned scores, because exp of a learned
    score has no bound. It is computed as softmax times its divisor, so every executor (way to compute attention)
    supports it. There is no lse (log-sum-exp of the scores), because outputs over parts of the keys are added and not
    merged.

    pattern: keys that each query may read.
    bias: log of a weight, which is added to the scores.
    scale: factor of the dot product; 1/sqrt(head_dim) by default.
    dropout: fraction of weights that training drops.
    impl: name of an executor, a way to compute attention; "auto" selects the one with the lowest estimated cost.

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys.

    Source: the published code of You et al., 2020, arXiv:2005.00742.
    """

    def __init__(
        self, pattern: Pattern, bias: Bias, *, scale: float | None = None, dropout: float = 0.0, impl: str = "auto"
    ):
        super().__init__()
        self.pattern, self.dropout = check_pattern("pattern", pattern), check_probability("dropout", dropout)
        self.bias = check_part(
            "bias", bias, Bias, "a bias that is the log of a weight, such as HardCodedGaussian((-1, 1))"
        )
        self.scale, self.lse, self.impl, self.wants = check_scale(scale), False, impl_of(impl), joined_wants(bias)

    def read(self, request: Request) -> Out[AttentionOutput]:
        output = read(request.replace(lse=True), self.impl)
        assert output.lse is not None
        return Out(AttentionOutput((at_least_float32(output.y) * output.lse.exp()[..., None]).to(output.y.dtype), None))


def _local() -> Unnormalised:
    return Unnormalised(Causal() & Band(3), kf.HardCodedGaussian((-1, 0)))


def _both_ways() -> Unnormalised:
    return Unnormalised(kf.Full(), kf.HardCodedGaussian((-1, 1), 2.0), scale=0.5)


NO_LSE = {"merge": "unnormalised outputs of parts of the keys add up, but merging takes weighted means"}
EXAMPLES = (Example(_local, breaks=NO_LSE), Example(_both_ways, breaks=NO_LSE))
