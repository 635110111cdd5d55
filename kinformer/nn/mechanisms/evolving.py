"""EvolvingAttention: attention that mixes its scores with the block below and convolves them."""

from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_in_range
from kinformer.core.example import Example
from kinformer.core.pattern import Pattern
from kinformer.nn.mechanisms.convolved_scores import ConvolvedScores
from kinformer.nn.mechanisms.score_convolution import Kernel


class EvolvingAttention(ConvolvedScores):
    """Attention that mixes its scores with the scores of the block below and convolves the result.

    In = alpha s_below + (1 - alpha) q.k,
    s = beta LeakyReLU(conv(In)) + (1 - beta) In, y = softmax(s) v

    Choose it over RealFormer, which only adds the scores of the block below, if attention forms shapes in the plane of
    queries and keys, such as diagonals or stripes. The convolution sees the neighbours of a pair and all heads. It
    holds the matrix of scores several times, and computes size^2 * heads more products per pair and head. In the
    authors' stack the lowest block is plain attention that passes its scores on, `Explicit(pattern, up=True)`. A layer
    of this class in the lowest block convolves its own scores.

    Neighbours are the pairs at adjacent positions. No query sees a pair that it may not read (see `ScoreConvolution`).
    Decoding needs scores of earlier queries: beside the keys, the decoding state keeps the rows of In of the last size
    - 1 queries, or size // 2 for a centred kernel.

    pattern: keys that each query may read.
    heads: number of heads of the layer.
    alpha: weight in In of the scores from the block below, 0 to 1. The authors' code calls it beta.
    beta: weight of the convolution in the scores s, 0 to 1. The authors' code calls it alpha.
    size: number of rows and columns of the kernel; 3 in the paper. Only a causal kernel may have an even size.
    kernel: "centred" for encoders; under `Causal()`, pairs with later keys are masked. A "causal" kernel, for decoders,
        covers the query and key of the pair and earlier ones. A "cross" kernel, for cross-attention, covers the query
        and earlier ones, and keys on both sides.
    slope: negative slope of the LeakyReLU after the convolution; 1 for none. The authors' code has this LeakyReLU.
    scale: factor of the dot product; 1/sqrt(head_dim) by default.
    dropout: fraction of attention weights that training drops.

    Errors: ValueError for a layer with another number of heads, and if the scores from the block below belong to other
    pairs. NoState (no decoding state exists) from `start` if the pattern allows later keys, and for a centred kernel in
    cross-attention.

    Source: Wang et al., 2021, arXiv:2102.12895.

    Differences: the mask of a decoder's kernel is this library's reading of the paper.
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


BREAKS = {
    "merge": (
        "the score of a pair depends on neighbouring pairs, so a part of the keys has other scores than in the whole"
    )
}
EXAMPLES = (Example(_causal, BREAKS), Example(_window, BREAKS), Example(_encoder, BREAKS))
