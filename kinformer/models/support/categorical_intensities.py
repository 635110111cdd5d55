"""CategoricalIntensities: reads intensities of pictures and predicts a categorical distribution."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least
from kinformer.core.loss import token_nll
from kinformer.core.model import LEAST_TEMPERATURE
from kinformer.models.support.intensities import Intensities

LEVELS = 256


class CategoricalIntensities(Intensities):
    """Categorical distribution of intensities, one channel per step: p(value) = softmax(W y).

    It is the `values` of an `ImageModel`, whose body returns y. Choose it for distributions with spikes, and if a
    distribution of any shape must be possible; choose `LogisticMixture` for shorter sequences. Each channel is
    conditioned on the channels before it. A picture has rows * columns * channels steps. All channels share one head,
    the matrix W.

    d: width of the model.
    channels: number of tables of 256 input vectors, one for each channel, as in the Image Transformer. With 1, all
        channels share one table, as in the Sparse Transformer, and only the position distinguishes channels.
    std: standard deviation of the initial embedding.
    zero: True initializes the head with zeros, so that all intensities are equally likely.

    Source: Parmar et al., 2018, arXiv:1802.05751, sections 3.1 and 3.4.
    """

    def __init__(self, d: int, *, channels: int = 1, std: float = 0.02, zero: bool = False):
        super().__init__()
        self.n, self.draws, self.channels = 1, 1, check_at_least("channels", channels, 1)
        self.embedding = nn.Embedding(LEVELS * channels, check_at_least("d", d, 1))
        self.head = nn.Linear(d, LEVELS)
        nn.init.normal_(self.embedding.weight, std=std)
        if zero:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def embed(self, values: Int[Tensor, "B T 1"], first: int = 0) -> Float[Tensor, "B T D"]:
        channel = torch.arange(first, first + values.shape[1], device=values.device) % self.channels
        return self.embedding(values[..., 0] + LEVELS * channel)

    def nll(self, y: Float[Tensor, "B T D"], values: Int[Tensor, "B T 1"]) -> Float[Tensor, "B T"]:
        return token_nll(self.head(y), values[..., 0])

    def draw(self, y: Float[Tensor, "B D"], uniform: Float[Tensor, "B 1"], temperature: float) -> Int[Tensor, "B 1"]:
        logits = self.head(y)
        if temperature < LEAST_TEMPERATURE:
            return logits.argmax(-1, keepdim=True)
        logits = logits - logits.amax(-1, keepdim=True)  # avoids infinite logits at a low temperature
        # first value whose cumulative probability exceeds the uniform number; float64 guarantees that one does
        sums = F.softmax(logits / temperature, -1).double().cumsum(-1)
        return torch.sum(sums <= uniform.double() * sums[:, -1:], -1, keepdim=True)
