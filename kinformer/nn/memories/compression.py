"""Compressions of a memory's old hidden states: pooling, convolutions, and selection by attention."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.autocast import disable_autocast
from kinformer.core.checks import check_at_least
from kinformer.core.choice import choice
from kinformer.core.example import Example
from kinformer.core.memory_compression import Compression, Slots
from kinformer.core.ties import compare_to_last, tolerance_of
from kinformer.nn.memories.compressed_positions import CUTS
from kinformer.nn.memories.compressive import Compressive


class MeanPool(Compression):
    """Compression of old hidden states: the mean of each block of `rate` states.

    rate: number of states that become one.

    Source: Rae et al., 2019, arXiv:1911.05507, section 3.2.
    """

    def __init__(self, rate: int):
        super().__init__()
        self.rate = check_at_least("rate", rate, 1)

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        count = _by_block(pos >= 0, self.rate).sum(2).clamp_min(1)
        return Slots(_by_block(x, self.rate).sum(2) / count[..., None], _first_of_block(pos, self.rate))


class MaxPool(Compression):
    """Compression of old hidden states: the elementwise maximum of each block of `rate` states.

    rate: number of states that become one.

    Source: Rae et al., 2019, arXiv:1911.05507, section 3.2.
    """

    def __init__(self, rate: int):
        super().__init__()
        self.rate = check_at_least("rate", rate, 1)

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        real = _by_block(pos >= 0, self.rate)[..., None]
        maximum = _by_block(x, self.rate).masked_fill(~real, -torch.inf).amax(2)
        return Slots(torch.where(real.any(2), maximum, 0.0), _first_of_block(pos, self.rate))


class StridedConv(Compression):
    """Compression of old hidden states: a convolution with kernel and stride `rate`.

    With `AttentionReconstruction` as its loss it has the lowest loss of the paper's compressions: 0.973 bits per
    character on enwik8, against 0.977 to 0.986 for the others. Its initial weights give the mean of each block, because
    a random mixture is noise that short trainings do not overcome. The paper does not specify initial weights.

    d: width of a hidden state.
    rate: number of states that become one.

    Source: Rae et al., 2019, arXiv:1911.05507, section 3.2.
    """

    def __init__(self, d: int, rate: int):
        super().__init__()
        self.d, self.rate = check_at_least("d", d, 1), check_at_least("rate", rate, 1)
        self.down = nn.Conv1d(d, d, rate, stride=rate)
        weight, bias = self.down.parameters()
        with torch.no_grad():
            weight.copy_(torch.eye(d)[..., None].expand(d, d, rate) / rate)
            bias.zero_()

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        return Slots(_convolve(self.down, x), _first_of_block(pos, self.rate))


class DilatedConv(Compression):
    """Compression of old hidden states: dilated convolutions with ReLU, then one with stride `rate`.

    Choose it if related tokens are further apart than `rate`. A dilated convolution combines three states. A compressed
    state therefore depends on sum(dilations) tokens on either side of its block, even if `ctx.only` forbids these
    tokens. The convolutions see only the states that are compressed in one call, with zeros before and after them. The
    initial weights are random, since with ReLUs no weights give a plain mean. Choose `StridedConv` for short trainings.

    d: width of a hidden state.
    rate: number of states that become one.
    dilations: dilation of each convolution of 3 states.

    Source: Rae et al., 2019, arXiv:1911.05507, section 3.2.

    Differences: the paper names dilated convolutions but not their number and sizes, which are choices of this library.
    """

    def __init__(self, d: int, rate: int, dilations: tuple[int, ...] = (1, 2)):
        super().__init__()
        self.d, self.rate = check_at_least("d", d, 1), check_at_least("rate", rate, 1)
        for n in dilations:
            check_at_least("a dilation", n, 1)
        self.wide = nn.ModuleList(nn.Conv1d(d, d, 3, dilation=n, padding=n) for n in dilations)
        self.down = nn.Conv1d(d, d, rate, stride=rate)

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        for conv in self.wide:
            x = torch.where((pos >= 0)[..., None], _convolve(conv, x).relu(), 0.0)
        return Slots(_convolve(self.down, x), _first_of_block(pos, self.rate))


class MostUsed(Compression):
    """Compression of old hidden states: one in `rate` is kept, the ones that received the most attention.

    The kept states stay in order, and the attention is the mean weight per query that could read the state. It has no
    parameters. The mechanism must be able to compute the attention that each key receives (`received_attention`). If
    two states have equal attention, the earlier one is kept.

    rate: number of old states for each state that is kept.

    Source: Rae et al., 2019, arXiv:1911.05507, section 3.2.
    """

    watches = True

    def __init__(self, rate: int):
        super().__init__()
        self.rate = check_at_least("rate", rate, 1)

    def forward(self, x: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], used: Float[Tensor, "B S"]) -> Slots:
        slots = pos.shape[1] // self.rate
        filled_blocks = (_by_block(pos, self.rate) >= 0).any(2).sum(1, keepdim=True)

        def rank() -> Int[Tensor, "B S"]:
            masked = used.masked_fill(pos < 0, -torch.inf)
            last = masked.sort(dim=1, descending=True).values.gather(1, (filled_blocks - 1).clamp_min(0))
            near = tolerance_of(masked.amax(1, keepdim=True).clamp_min(0))
            return compare_to_last(masked, last, near).sort(dim=1, descending=True, stable=True).indices

        ranked = choice(rank)
        # slots beyond the non-empty blocks select an empty state in an extra last column
        chosen = (
            ranked[:, :slots]
            .masked_fill(torch.arange(slots, device=pos.device) >= filled_blocks, pos.shape[1])
            .sort(1)
            .values
        )
        end = F.pad(pos, (0, 1), value=-1)
        return Slots(F.pad(x, (0, 0, 0, 1)).take_along_dim(chosen[..., None], 1), end.take_along_dim(chosen, 1))


def _by_block(x: Tensor, rate: int) -> Tensor:
    """Reshape [B S ...] to blocks [B S/rate rate ...]."""
    return x.unflatten(1, (x.shape[1] // rate, rate))


def _first_of_block(pos: Int[Tensor, "B S"], rate: int) -> Int[Tensor, "B N"]:
    """Return the first position of each block; -1 for an empty block."""
    last = torch.iinfo(pos.dtype).max
    first = _by_block(pos.masked_fill(pos < 0, last), rate).amin(2)
    return first.masked_fill(first == last, -1)


def _convolve(conv: nn.Conv1d, x: Float[Tensor, "B S D"]) -> Float[Tensor, "B N D"]:
    with disable_autocast(x):  # the loss measures small differences from x, smaller than autocast's rounding
        return conv(x.to(conv.weight.dtype).mT).mT  # [B D S] to [B D N]


def _strided() -> Compressive:
    return Compressive(4, 4, 3, StridedConv(16, 2), kf.AttentionReconstruction())


def _dilated() -> Compressive:
    return Compressive(3, 4, 1, DilatedConv(16, 3, (2,)), kf.AutoEncoding(16, 3, "mse"))


EXAMPLES = tuple(
    Example(make, breaks={"compiles": CUTS})
    for make in (
        lambda: Compressive(3, 2, 1, MaxPool(3)),
        _strided,
        _dilated,
        lambda: Compressive(4, 4, 3, MostUsed(2)),
    )
)
