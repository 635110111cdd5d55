"""Reused: values read by the attention weights of a block beneath."""

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
    """A v with the attention weights A of the `Lending` layer below: a layer without queries and keys of its own.

    Stand it above one, on a projection without queries and keys: `Attention(ValueProjection(d, heads),
    Reused(pattern))`. Decoding keeps values alone. Any number of such layers may stand above one that lends. The read
    has no lse.

    pattern: which keys each query may read, that of the `Lending` layer: it says which values a cache keeps.
    dropout: the share of weights that training drops, other ones in each layer; 0 is what the paper advises.

    Errors: ValueError for weights of another pattern, of other pairs or of another number of heads, and without any;
    NoState from `start` where the pattern reads ahead. Source: Ying et al., 2021, arXiv:2102.12702.
    """

    received_attention = (
        Mechanism.received_attention
    )  # its queries and keys have no width: the weights are not to be had from them
    wants = (Want("weights"),)
    lse = False

    def __init__(self, pattern: Pattern, *, dropout: float = 0.0):
        super().__init__()
        self.pattern, self.dropout = check_pattern("pattern", pattern), check_probability("dropout", dropout)

    def read(self, request: Request) -> Out[AttentionOutput]:
        sent = request.below.get("weights")
        if sent is None:
            raise ValueError("Reused got no weights from below; let a block beneath read by Lending(pattern)")
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
        """ValueError for weights of another pattern: they are not those that this layer would sum to 1."""
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
