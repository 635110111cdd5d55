"""Softmax: softmax attention under a pattern and a bias."""

from kinformer.attend import impl_of, read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.bias import Bias
from kinformer.core.checks import check_optional_part, check_part, check_probability, check_scale
from kinformer.core.key_value_mechanism import KeyValueMechanism, joined_wants
from kinformer.core.layer import Out
from kinformer.core.pattern import Heads, Pattern, check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score import Score
from kinformer.core.scores.product import Product
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided


class Softmax(KeyValueMechanism):
    """Softmax attention over the keys that the pattern allows. It is the default choice.

    y = softmax(scale q.k + bias) v

    It can be decoded with a cache of keys if the pattern never reads ahead.

    pattern: keys that each query may read, such as `Causal() & Band(64)`.
    bias: bias that changes the scores.
    score: computes the scores; the dot product of query and key by default.
    scale: factor of the dot product; 1/sqrt(head_dim) by default.
    dropout: fraction of attention weights that training drops.
    lse: False omits the log-sum-exp of the scores and allows a faster executor; a merge with other outputs needs it.
    impl: name of an executor, a way to compute attention; "auto" selects the one with the lowest estimated cost.

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 3.2.1.
    """

    merges = True

    def __init__(
        self,
        pattern: Pattern,
        bias: Bias | None = None,
        *,
        score: Score | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        lse: bool = True,
        impl: str = "auto",
    ):
        super().__init__()
        self.pattern, self.dropout = check_pattern("pattern", pattern), check_probability("dropout", dropout)
        self.bias = check_optional_part("bias", bias, Bias, "a bias, such as ALiBi(heads)")
        self.score = check_part("score", score, Score, "a score, such as Product()") if score else Product()
        self.scale, self.lse, self.impl = check_scale(scale), lse, impl_of(impl)
        self.wants = joined_wants(bias, score)

    def read(self, request: Request) -> Out[AttentionOutput]:
        return Out(read(request, self.impl))


EXAMPLES = (
    lambda: Softmax(Causal()),
    lambda: Softmax(Causal() & (Band(3) | Strided(4))),
    lambda: Softmax(Heads(Causal() & Band(2), Causal()), scale=0.5),
    lambda: Softmax(Full()),
)
