"""LogisticMixture: reads pixels of pictures and predicts a mixture of logistic distributions."""

from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import linear_float32
from kinformer.core.checks import check_at_least
from kinformer.models.support.intensities import Intensities

STEEPEST = -7.0  # log of the smallest scale, of intensities from -1 to 1: a ninth of a bin
STEP = 2 / 255


class _Mixture(NamedTuple):
    """Parameters of M logistics: log weights, means and log scales by channel, and factors of earlier channels."""

    log_weight: Float[Tensor, "*A M"]
    mean: Float[Tensor, "*A C M"]
    log_scale: Float[Tensor, "*A C M"]
    along: list[list[Float[Tensor, "*A M"]]]  # for each channel, one factor per earlier channel


class LogisticMixture(Intensities):
    """Discretized mixture of logistic distributions, one pixel per step.

    p(pixel) = sum_m w_m prod_c [F((x_c + 1/255 - u_mc) / s_mc) - F((x_c - 1/255 - u_mc) / s_mc)]

    u_mc = mean_mc + sum_(b<c) k_mcb x_b

    It is the `values` of an `ImageModel`. F is the logistic function, x_c the intensity of channel c, from -1 to 1, and
    the outer bins extend to infinity. The weights w_m, the means, the scales s and the k are linear maps of the body's
    output. The input of a pixel is one vector, a linear map of its channels (the paper's 1 x 3 convolution). Each
    component of a mixture of three channels has 10 parameters.

    Choose it for large pictures: colour sequences are a third as long, and near intensities have similar probabilities.
    Choose `CategoricalIntensities` for distributions with spikes, such as a black background.

    d: width of the model.
    channels: number of channels of a pixel.
    mixtures: number of logistic distributions; the default 10 is the number in the papers.

    Source: Salimans et al., 2017, arXiv:1701.05517, section 2; in Parmar et al., 2018, arXiv:1802.05751, section 3.4.

    Differences: The authors of the mixture approximate a narrow bin by the density; here it is exact at any scale.
    """

    def __init__(self, d: int, channels: int, mixtures: int = 10):
        super().__init__()
        self.n, self.mixtures = check_at_least("channels", channels, 1), check_at_least("mixtures", mixtures, 1)
        self.draws = 1 + channels
        self.pixel = nn.Linear(channels, check_at_least("d", d, 1))
        self.head = nn.Linear(d, mixtures * (1 + 2 * channels + channels * (channels - 1) // 2))

    def embed(self, values: Int[Tensor, "B T n"], first: int = 0) -> Float[Tensor, "B T D"]:
        return self.pixel(to_unit_range(values).to(self.pixel.weight.dtype))

    def nll(self, y: Float[Tensor, "B T D"], values: Int[Tensor, "B T n"]) -> Float[Tensor, "B T"]:
        mixture = self._mixture(y)
        x = to_unit_range(values).to(mixture.mean.dtype)
        log_p = mixture.log_weight
        for c in range(self.n):
            mean = self._mean(mixture, c, x[..., :c])
            log_p = log_p + log_bin(x[..., c, None] - mean, mixture.log_scale[..., c, :], values[..., c, None])
        return -log_p.logsumexp(-1)

    def draw(
        self, y: Float[Tensor, "B D"], uniform: Float[Tensor, "B draws"], temperature: float
    ) -> Int[Tensor, "B n"]:
        mixture = self._mixture(y)
        sums = (mixture.log_weight / max(temperature, 1e-3)).softmax(-1).double().cumsum(-1)
        component = torch.sum(sums <= uniform[:, :1].double() * sums[:, -1:], -1, keepdim=True)  # [B 1]
        values = torch.empty(len(y), 0, dtype=torch.long, device=y.device)
        for c in range(self.n):
            mean = self._mean(mixture, c, to_unit_range(values).to(mixture.mean.dtype)).gather(1, component)
            u = uniform[:, c + 1, None].to(mean.dtype).clamp(1e-5, 1 - 1e-5)
            x = mean + temperature * mixture.log_scale[:, c].gather(1, component).exp() * u.logit()
            values = torch.cat([values, ((x.clamp(-1, 1) + 1) / STEP).round().long()], 1)
        return values

    def _mixture(self, y: Float[Tensor, "*A D"]) -> _Mixture:
        numbers = linear_float32(self.head, y).unflatten(-1, (-1, self.mixtures))
        c = self.n
        starts = [
            1 + 2 * c + n * (n - 1) // 2 for n in range(1, c + 1)
        ]  # starts of the factors of channels 1, 2, .., and the end
        along = [[numbers[..., k, :].tanh() for k in range(first, end)] for first, end in pairwise(starts)]
        return _Mixture(
            numbers[..., 0, :].log_softmax(-1),
            numbers[..., 1 : 1 + c, :],
            numbers[..., 1 + c : 1 + 2 * c, :].clamp_min(STEEPEST),
            [[], *along],
        )

    def _mean(self, mixture: _Mixture, c: int, before: Float[Tensor, "*A b"]) -> Float[Tensor, "*A M"]:
        """Return the means of a channel, given the intensities of the channels before it."""
        means = mixture.mean[..., c, :]
        for b, factor in enumerate(mixture.along[c]):
            means = means + factor * before[..., b, None]
        return means


def to_unit_range(values: Int[Tensor, "*A"]) -> Float[Tensor, "*A"]:
    """Return intensities scaled to the range from -1 to 1.

    values: intensities 0 .. 255.
    """
    return values.double() * STEP - 1


def log_bin(away: Tensor, log_scale: Tensor, values: Tensor) -> Tensor:
    """Return the log-probability that a logistic distribution gives to the bin of an intensity.

    away: intensity, scaled to -1 .. 1, minus the mean.
    log_scale: log of the scale of the distribution.
    values: intensities 0 .. 255, which identify the outer bins.
    """
    sharp = (-log_scale).exp()
    high, low = (away + STEP / 2) * sharp, (away - STEP / 2) * sharp
    # F(high) - F(low) = F(high) F(-low) (1 - exp(low - high)), which loses no digits in the tails
    inner = F.logsigmoid(high) + F.logsigmoid(-low) + (-torch.expm1(low - high)).log()
    edge = torch.where(values == 0, F.logsigmoid(high), F.logsigmoid(-low))
    return torch.where((values == 0) | (values == 255), edge, inner)
