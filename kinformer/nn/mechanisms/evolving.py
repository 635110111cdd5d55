"""EvolvingAttention: scores of the block beneath and a block's own, mixed and convolved."""

from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_in_range
from kinformer.core.example import Example
from kinformer.core.pattern import Pattern
from kinformer.nn.mechanisms.convolved_scores import ConvolvedScores
from kinformer.nn.mechanisms.score_convolution import Kernel


class EvolvingAttention(ConvolvedScores):
    """In = alpha s_beneath + (1 - alpha) q.k; s = beta LeakyReLU(conv(In)) + (1 - beta) In; softmax(s) v.

    Choose it over RealFormer's plain sum where what to attend to has a form in the plane of queries and keys, such as
    diagonals and stripes: the convolution sees a pair's neighbours and all heads. It holds the matrix of scores a few
    times over, and costs size^2 heads products more per pair and head. The lowest block of the authors' stack has none
    beneath and is a plain one, `Explicit(pattern, up=True)`; a layer of this class alone convolves its own scores.

    Neighbours are those of the next positions, and no query hears of what it may not read (`ScoreConvolution`). With a
    state it keeps, beside the keys, size - 1 rows of In of the last queries: decoding needs scores of earlier queries.

    pattern: which keys each query may read.
    heads: of the layer.
    alpha: how much of In comes from beneath. The authors' code calls it beta.
    beta: how much of the scores is convolved. The authors' code calls it alpha.
    size: rows and columns of the kernel; 3 in the paper.
    kernel: "centred" for encoders (under `Causal()` what lies ahead is masked), "causal", which ends at the pair itself
        in both directions, for decoders, "cross", which does so among the queries alone, for cross-attention.
    slope: of the rectifier behind the convolution, which the authors' code has; 1 for none.
    scale: the factor of the product, 1/sqrt(head_dim) unless given.
    dropout: the share of weights that training drops.

    Errors: ValueError for other heads and for scores from below of other pairs; NoState from `start` where the pattern
    reads ahead, and for a centred kernel across sequences. Source: Wang et al., 2021, arXiv:2102.12895; the mask of a
    decoder's kernel is a reading of it.
    """

    def __init__(
        self,
        pattern: Pattern,
        heads: int,
        *,
        alpha: float = 0.5,
        beta: float = 0.5,
        size: int = 3,
        kernel: Kernel = "centred",
        slope: float = 0.01,
        scale: float | None = None,
        dropout: float = 0.0,
    ):
        super().__init__(pattern, heads, size=size, kernel=kernel, slope=slope, scale=scale, dropout=dropout)
        self.alpha, self.beta = check_in_range("alpha", alpha, 0.0, 1.0), check_in_range("beta", beta, 0.0, 1.0)

    def inputs(
        self, scores: Float[Tensor, "B H T S"], previous: Float[Tensor, "B H T S"] | None
    ) -> Float[Tensor, "B H T S"]:
        return scores if previous is None else self.alpha * previous + (1 - self.alpha) * scores

    def combine_scores(
        self, scores: Float[Tensor, "B H T S"], inputs: Float[Tensor, "B H T S"], convolved: Float[Tensor, "B H T S"]
    ) -> Float[Tensor, "B H T S"]:
        return self.beta * convolved + (1 - self.beta) * inputs


def _causal() -> EvolvingAttention:
    return EvolvingAttention(kf.Causal(), 2, kernel="causal")


def _window() -> EvolvingAttention:
    return EvolvingAttention(kf.Causal() & kf.Band(3), 2, beta=0.7, slope=0.3)


def _encoder() -> EvolvingAttention:
    return EvolvingAttention(kf.Full(), 2)


BREAKS = {"merge": "a pair's score takes those of its neighbours, so scores of a part of the keys are others"}
EXAMPLES = (Example(_causal, BREAKS), Example(_window, BREAKS), Example(_encoder, BREAKS))
