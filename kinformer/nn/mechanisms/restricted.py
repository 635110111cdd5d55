"""Restricted: softmax attention under a masking function, which reads and keeps no key that the function leaves out."""

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
    """softmax(scale q.k + bias) v with its weights times m(x) and renormalised; keys that m leaves out are not kept.

    Choose it for learned spans: `Softmax(pattern, span)` computes the same numbers, but this reads the pattern and
    `Band(mask.reach)`, so that a learned span which got shorter needs a smaller cache, and less of a memory of hidden
    states: `Hidden(length, mechanism.lookback)` follows it. A read of a whole row costs what its longest span reaches.

    pattern: which keys may be read at all, such as `Causal()`.
    mask: the masking function, such as `AdaptiveSpan(heads, 1024)`.
    bias: a further change of the scores, applied before it: the paper's is `Relative(head_dim, longest, values=False)`.
    dropout: the share of attention weights that training drops.
    impl: an executor by name; "auto" takes the cheapest.

    Errors: NoState from `start` where the pattern reads ahead. Source: Sukhbaatar et al., 2019, arXiv:1905.07799,
    section 2.2; Lin et al., 2021, arXiv:2106.04554, section 4.6.2.
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
        """The masking function, wherever among the biases it stands."""
        last = self.bias.biases[-1] if isinstance(self.bias, Plus) else self.bias
        assert isinstance(last, Masking)
        return last

    @property  # derived, because a span is learned
    def pattern(self) -> Pattern:  # type: ignore[override]
        """What m does not leave out."""
        return self.within if self.mask.reach == math.inf else self.within & Band(self.lookback())

    @property
    def receptive_field(self) -> Pattern:
        far = self.mask.max_distance
        return self.within if far == math.inf else self.within & Band(int(min(far, self.within.reach()[0])))

    def lookback(self) -> int:
        """How many positions before its own a query still reads: what a memory must keep."""
        return int(min(self.mask.reach, self.within.reach()[0]))

    def read(self, request: Request) -> Out[AttentionOutput]:
        return Out(read(request, self.impl))


EXAMPLES = (
    lambda: Restricted(Causal(), AdaptiveSpan(2, 8, ramp=3)),
    lambda: Restricted(Causal(), StepMasking((1, 4)), AdaptiveSpan(2, 6, ramp=2, start=3.0)),
    lambda: Restricted(Causal(), DynamicSpan(8, ramp=3, itself=False)),
)
