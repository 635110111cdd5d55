"""Compressions that are learned or that choose: convolution, dilated convolution, most-used."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.losses.compression import AttentionReconstruction, AutoEncoding
from kinformer.memories.compressive import Compression, Compressive, Slots, by_block, first_of_block


class Conv(Compression):
    """A convolution whose kernel and stride are `rate`: the best of the paper's, with AttentionReconstruction.

    Source: Rae et al., 2019, arXiv:1911.05507, section 3.2.
    """

    def __init__(self, d: int, rate: int):
        super().__init__()
        self.rate = rate
        self.down = nn.Conv1d(d, d, rate, stride=rate)

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        return Slots(self.down(x.mT).mT, first_of_block(pos, self.rate))


class Dilated(Compression):
    """Convolutions of 3 states, each dilated and followed by a ReLU, before one whose kernel and stride are `rate`.

    Choose it where what belongs together lies further apart than `rate`. They see zeros beyond the states that leave
    the memory together. A compressed state so hears of sum(dilations) tokens on either side of its block, which a
    batch's limits do not keep from it. The paper names the kind and not the layers; these are a choice. Source: Rae et
    al., 2019, arXiv:1911.05507, section 3.2.
    """

    def __init__(self, d: int, rate: int, dilations: tuple[int, ...] = (1, 2)):
        super().__init__()
        self.rate = rate
        self.wide = nn.ModuleList(nn.Conv1d(d, d, 3, dilation=n, padding=n) for n in dilations)
        self.down = nn.Conv1d(d, d, rate, stride=rate)

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        for conv in self.wide:
            x = torch.where((pos >= 0)[..., None], conv(x.mT).mT.relu(), 0.0)
        return Slots(self.down(x.mT).mT, first_of_block(pos, self.rate))


class MostUsed(Compression):
    """One of `rate` states survives, as it is: those that got the most attention per query, in their old order.

    It learns nothing and asks the mechanism for its `mass`; of equals the earlier survives. Source: Rae et al., 2019,
    arXiv:1911.05507, section 3.2.
    """

    watches = True

    def __init__(self, rate: int):
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        most = pos.shape[1] // self.rate
        best = used.masked_fill(pos < 0, -torch.inf).sort(dim=1, descending=True, stable=True).indices[:, :most]
        room = (by_block(pos, self.rate) >= 0).any(2).sum(1, keepdim=True)
        chosen = best.masked_fill(torch.arange(most, device=pos.device) >= room, pos.shape[1]).sort(dim=1).values
        end = nn.functional.pad(pos, (0, 1), value=-1)
        return Slots(
            nn.functional.pad(x, (0, 0, 0, 1)).take_along_dim(chosen[..., None], 1), end.take_along_dim(chosen, 1)
        )


EXAMPLES = (
    lambda: Compressive(4, 4, 3, Conv(16, 2), AttentionReconstruction()),
    lambda: Compressive(3, 4, 1, Dilated(16, 3, (2,)), AutoEncoding(16, 3, "mse")),
    lambda: Compressive(4, 4, 3, MostUsed(2)),
)
