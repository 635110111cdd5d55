"""PredictiveAttention: attention that adds convolved scores of the block below to its own scores."""

from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_in_range
from kinformer.core.pattern import Pattern
from kinformer.nn.mechanisms.convolved_scores import ConvolvedScores
from kinformer.nn.mechanisms.score_convolution import Kernel


class PredictiveAttention(ConvolvedScores):
    """Attention that mixes its own scores with a convolution of the scores of the block below.

    s = alpha q.k + (1 - alpha) g(s_below), g = LeakyReLU(conv), y = softmax(s) v

    This is the predecessor of `EvolvingAttention`, with the same cost, decoding state and errors. The block's own
    scores are not convolved. Choose it to add g to a trained model: with alpha near 1 the model starts close to its old
    output. The lowest block has no scores below it and uses the dot product unchanged.

    pattern, heads, size, kernel, slope, scale, dropout: as in `EvolvingAttention`.
    alpha: weight of the block's own scores, 0 to 1.

    Source: Wang et al., 2021, https://openreview.net/forum?id=YQVjbJPnPc9, "Predictive Attention Transformer",
    submitted to ICLR.
    """

    def __init__(
        self,
        pattern: Pattern,
        heads: int,
        *,
        alpha: float = 0.5,
        size: int = 3,
        kernel: Kernel = "centred",
        slope: float = 0.01,
        scale: float | None = None,
        dropout: float = 0.0,
    ):
        super().__init__(pattern, heads, size=size, kernel=kernel, slope=slope, scale=scale, dropout=dropout)
        self.alpha = check_in_range("alpha", alpha, 0.0, 1.0)

    def inputs(
        self, scores: Float[Tensor, "B H T S"], previous: Float[Tensor, "B H T S"] | None
    ) -> Float[Tensor, "B H T S"] | None:
        return previous

    def combine_scores(
        self, scores: Float[Tensor, "B H T S"], inputs: Float[Tensor, "B H T S"], convolved: Float[Tensor, "B H T S"]
    ) -> Float[Tensor, "B H T S"]:
        return self.alpha * scores + (1 - self.alpha) * convolved


def _causal() -> PredictiveAttention:
    return PredictiveAttention(kf.Causal(), 2, kernel="causal")


EXAMPLES = (_causal,)
