"""Observed: what an agent is told at a step, as a vector of its width."""

import math

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import whole_numbers

CHANNELS, FEATURES = 4, 32  # the most channels of a picture; of what its convolutions give


class Observed(nn.Module):
    """Numbers through two linear layers, or a small picture through three convolutions of stride 2.

    d: the width.
    shape: of an observation: three sizes of which the last or the first is at most 4 are a picture of that many
        channels, its numbers from 0 to 255; others are one vector.

    Errors: ValueError for a shape without numbers.
    """

    def __init__(self, d: int, shape: tuple[int, ...]):
        super().__init__()
        self.shape = whole_numbers("observations", shape, 1)
        if not shape:
            raise ValueError("observations=() has no numbers; give the shape of an observation, such as 4,")
        self.last = len(shape) == 3 and shape[2] <= CHANNELS
        self.picture = self.last or (len(shape) == 3 and shape[0] <= CHANNELS)
        self.layers = nn.Sequential(*(self._convolved(d) if self.picture else self._flat(d)))

    def forward(self, seen: Float[Tensor, "B T *n"]) -> Float[Tensor, "B T D"]:
        like = next(self.parameters())
        rows, columns = seen.shape[:2]
        x = seen.to(like.dtype)
        if not self.picture:
            return self.layers(x.flatten(2))
        x = x.reshape(rows * columns, *self.shape) / 255
        return self.layers(x.permute(0, 3, 1, 2) if self.last else x).unflatten(0, (rows, columns))

    def _flat(self, d: int) -> list[nn.Module]:
        return [nn.Linear(math.prod(self.shape), d), nn.ReLU(), nn.Linear(d, d)]

    def _convolved(self, d: int) -> list[nn.Module]:
        channels, *sizes = (self.shape[2], *self.shape[:2]) if self.last else self.shape
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Conv2d(channels, FEATURES, 3, stride=2, padding=1), nn.ReLU()]
            channels, sizes = FEATURES, [-(-size // 2) for size in sizes]
        return [*layers, nn.Flatten(), nn.Linear(FEATURES * math.prod(sizes), d)]
