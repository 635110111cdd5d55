"""Reused: attention with the attention weights of a lower layer."""

from typing import TYPE_CHECKING

from torch.nn import functional as F

import kinformer as kf
from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.checks import check_probability
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Below, Out, PairFactors, PerToken, Want
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.request import Request
from kinformer.core.score_matrix import weigh_values
from kinformer.nn.scores.lower_scores import check_pairs, of_pairs

if TYPE_CHECKING:
    from kinformer.nn.depth.stack import Stack


class Reused(KeyValueMechanism):
    """Attention y = A v with the weights A of the `Lending` layer below; it has no queries or keys.

    Place it above a `Lending` layer, on a projection without queries and keys: `Attention(ValueProjection(d, heads),
    Reused(pattern))`. Its cache keeps only values. Any number of these layers may use one `Lending` layer. The output
    has no lse (log-sum-exp), so it cannot be merged.

    pattern: keys that each query may read, the same as in the `Lending` layer; it decides which values a cache keeps.
    dropout: fraction of weights that training drops, drawn separately in each layer; the paper recommends 0.

    Errors: ValueError for weights of another pattern, of other pairs or of another number of heads, and without
    weights; NoState (no decoding state exists) from `start` if the pattern allows later keys.

    Source: Ying et al., 2021, arXiv:2102.12702.
    """

    # its queries and keys have width 0, so the weights cannot be computed from them
    received_attention = Mechanism.received_attention
    wants = (Want("weights"),)
    lse = False

    def __init__(self, pattern: Pattern, *, dropout: float = 0.0):
        super().__init__()
        self.pattern, self.dropout = check_pattern("pattern", pattern), check_probability("dropout", dropout)

    def read(self, request: Request) -> Out[AttentionOutput]:
        sent = request.below.get("weights")
        if sent is None:
            raise ValueError("Reused got no weights from the blocks below. Use Lending(pattern) in a block below")
        self._check_pattern(sent)
        if isinstance(sent, PairFactors):
            check_pairs("weights", sent, (*sent.q.shape[:3], sent.k.shape[2]), request)
            queries, keys = request.queries._replace(q=sent.q), request.keys._replace(k=sent.k)
            scale = sent.q.shape[-1] ** -0.5
            return Out(AttentionOutput(read(request.replace(queries=queries, keys=keys, scale=scale)).y, None))
        weights = of_pairs("weights", request)
        assert weights is not None
        return Out(AttentionOutput(weigh_values(F.dropout(weights, request.dropout), request), None))

    def _check_pattern(self, sent: Below) -> None:
        """Raise ValueError for weights of another pattern, because they do not sum to 1 under this one."""
        pattern = None if isinstance(sent, PerToken) else sent.pattern
        if pattern is not None and pattern != self.pattern:
            raise ValueError(
                f"Reused cannot read the weights from below: got weights of {pattern}, expected {self.pattern}. "
                "Give Lending and Reused one pattern."
            )


def _lazy_block() -> "Stack":
    window = kf.Causal() & kf.Band(3)
    lent = kf.Attention(kf.QKV(16, 2), kf.Lending(window))
    return kf.Stack(
        [kf.PreNorm(lent), kf.PreNorm(kf.Attention(kf.ValueProjection(16, 2, value_heads=1), Reused(window)))]
    )


EXAMPLES = (_lazy_block,)
