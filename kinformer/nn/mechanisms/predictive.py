"""PredictiveAttention: a block's own scores, and what a convolution predicts of them from the block beneath."""

from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_in_range
from kinformer.core.pattern import Pattern
from kinformer.nn.mechanisms.convolved_scores import ConvolvedScores
from kinformer.nn.mechanisms.score_convolution import Kernel


class PredictiveAttention(ConvolvedScores):
    """s = alpha q.k + (1 - alpha) g(s_beneath), g = LeakyReLU(conv); softmax(s) v.

    The form before `EvolvingAttention`, whose other arguments, cost, state and errors it has: the block's own scores
    are not convolved, so a trained model can be given g and go on from what it was with alpha near 1. The lowest block,
    which has none beneath, takes the product as it is.

    alpha: how much of the scores is the block's own.

    Source: Wang et al., "Predictive Attention Transformer", submitted to ICLR 2021.
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
