"""Restricted: softmax attention under a masking function, without the keys that it masks."""

import math

from kinformer.attend import impl_of, read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.bias import Bias, Plus
from kinformer.core.checks import check_part, check_probability
from kinformer.core.key_value_mechanism import KeyValueMechanism, joined_wants
from kinformer.core.layer import Out
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.request import Request
from kinformer.nn.biases.adaptive_span import AdaptiveSpan, DynamicSpan
from kinformer.nn.biases.masking import Masking, StepMasking
from kinformer.nn.patterns.band import Band


class Restricted(KeyValueMechanism):
    """Softmax attention with a masking function m(x); fully masked keys are neither read nor cached.

    The weights of softmax(scale q.k + bias) are multiplied by m(x) and renormalised. Choose it for learned spans.
    `Softmax(pattern, span)` computes the same numbers. This class also applies `Band(mask.reach)`, so a learned span
    that became shorter needs a smaller cache and a smaller memory of hidden states: `Hidden(length,
    mechanism.lookback)` makes a memory that follows the span. The longest span of all heads decides the cost of a whole
    row.

    pattern: keys that a query may read at all, such as `Causal()`.
    mask: masking function, such as `AdaptiveSpan(heads, 1024)`.
    bias: further bias, applied before the mask; `Relative(head_dim, longest, values=False)` in the paper.
    dropout: fraction of attention weights that training drops.
    impl: name of an executor, a way to compute attention; "auto" selects the one with the lowest estimated cost.

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys.

    Source: Sukhbaatar et al., 2019, arXiv:1905.07799, section 2.2; Lin et al., 2021, arXiv:2106.04554, section 4.6.2.
    """

    merges = True

    def __init__(
        self, pattern: Pattern, mask: Masking, bias: Bias | None = None, *, dropout: float = 0.0, impl: str = "auto"
    ):
        super().__init__()
        self.within = check_pattern("pattern", pattern)
        check_part("mask", mask, Masking, "a masking function, such as AdaptiveSpan(heads, 1024)")
        if bias is not None:
            check_part("bias", bias, Bias, "a bias, such as Relative(head_dim, 64)")
        self.bias = mask if bias is None else Plus(bias, mask)
        self.dropout, self.impl, self.wants = (
            check_probability("dropout", dropout),
            impl_of(impl),
            joined_wants(self.bias),
        )

    @property
    def mask(self) -> Masking:
        """Masking function m(x), stored as the last of the biases that change the scores."""
        last = self.bias.biases[-1] if isinstance(self.bias, Plus) else self.bias
        assert isinstance(last, Masking)
        return last

    @property  # computed in each call, because a span is learned
    def pattern(self) -> Pattern:  # type: ignore[override]
        """Keys that a query may read: `pattern` without the keys that the mask excludes."""
        return self.within if self.mask.reach == math.inf else self.within & Band(self.lookback())

    @property
    def receptive_field(self) -> Pattern:
        far = self.mask.max_distance
        return self.within if far == math.inf else self.within & Band(int(min(far, self.within.reach()[0])))

    def lookback(self) -> int:
        """Return the number of earlier positions that a query still reads, and so a memory must keep."""
        return int(min(self.mask.reach, self.within.reach()[0]))

    def read(self, request: Request) -> Out[AttentionOutput]:
        return Out(read(request, self.impl))


EXAMPLES = (
    lambda: Restricted(Causal(), AdaptiveSpan(2, 8, ramp=3)),
    lambda: Restricted(Causal(), StepMasking((1, 4)), AdaptiveSpan(2, 6, ramp=2, start=3.0)),
    lambda: Restricted(Causal(), DynamicSpan(8, ramp=3, itself=False)),
)
