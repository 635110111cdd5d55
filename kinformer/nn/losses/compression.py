"""Losses of a compressed memory: what attention no longer reads in it, or what cannot be rebuilt from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.checks import check_at_least, check_option

Norm = Literal["l2", "segment", "mse"]


class CompressionLoss(nn.Module, ABC):
    """A loss for each token of a segment, of the states that are compressed next; it trains the compression alone.

    Every input is detached but what the compression has made. The memory reports it under `key`, and declares that it
    trains the compression and this module; weigh it in a model by `penalties={loss.key: 1.0}`.

    `d` and `rate` are those of the compressions that it fits, None where any will do.

    norm: "l2", the Euclidean norm of what differs for each token, "segment", the paper's one over all tokens of a
        segment, or "mse", the mean of its squares.

    Errors: ValueError for another norm.
    """

    key: str
    d: int | None = None
    rate: int | None = None

    def __init__(self, norm: Norm = "l2"):
        super().__init__()
        self.norm = check_option("norm", norm, Norm)

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "B T D"],
        real: Bool[Tensor, "B T"],
        old: Float[Tensor, "B S D"],
        old_real: Bool[Tensor, "B S"],
        new: Float[Tensor, "B N D"],
        new_real: Bool[Tensor, "B N"],
        read: Callable,
    ) -> Float[Tensor, "B T"]:
        """`x` are the segment's states, `real` where tokens stand; `old` become `new`.

        `read(x, source, real)` is attention by content alone.
        """


class AttentionReconstruction(CompressionLoss):
    """How far what each token reads in the old states is from what it reads in the compressed ones, over all heads.

    The better of the two losses in the paper: it keeps what attention looks at and may lose the rest. The paper takes
    one norm over all tokens of a segment; that is norm="segment", for which a segment must come in one piece: each of
    its tokens then has that norm. By default each token has its own, so that it does not matter how a row is cut.
    Source: Rae et al., 2019, arXiv:1911.05507, algorithm 2.
    """

    key = "attention_reconstruction"

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        real: Bool[Tensor, "B T"],
        old: Float[Tensor, "B S D"],
        old_real: Bool[Tensor, "B S"],
        new: Float[Tensor, "B N D"],
        new_real: Bool[Tensor, "B N"],
        read: Callable,
    ) -> Float[Tensor, "B T"]:
        # two reads that are nearly equal: in half precision their difference would be rounding alone
        with disable_autocast(x):
            x, old, new = map(at_least_float32, (x, old, new))
            squares = (read(x, old, old_real).y - read(x, new, new_real).y).square()  # [B H T V]
        if self.norm == "mse":
            return squares.mean((1, 3))
        total = squares.sum((1, 3))
        if self.norm == "segment":
            total = torch.where(real, total, 0.0).sum(1, keepdim=True).expand_as(total)
        return _root(total)


class AutoEncoding(CompressionLoss):
    """How far the old states are from what a transposed convolution makes of the compressed ones; alike for all tokens.

    The loss that tries to keep everything; it is the only one that trains a decoder beside the compression.

    d: the width of a state.
    rate: the compression's.
    norm: as in `CompressionLoss`; that of what is rebuilt is over a whole segment at any rate.

    Source: Rae et al., 2019, arXiv:1911.05507, section 3.2.
    """

    key = "autoencoding"

    def __init__(self, d: int, rate: int, norm: Norm = "l2"):
        super().__init__(norm)
        self.d, self.rate = check_at_least("d", d, 1), check_at_least("rate", rate, 1)
        self.decoder = nn.ConvTranspose1d(d, d, rate, stride=rate)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        real: Bool[Tensor, "B T"],
        old: Float[Tensor, "B S D"],
        old_real: Bool[Tensor, "B S"],
        new: Float[Tensor, "B N D"],
        new_real: Bool[Tensor, "B N"],
        read: Callable,
    ) -> Float[Tensor, "B T"]:
        with disable_autocast(new):
            built = self.decoder(new.to(self.decoder.weight.dtype).mT).mT
        gap = torch.where(old_real[..., None], built - old, 0.0)  # [B S D]
        squares = gap.square().sum((1, 2))
        numbers = (old_real.sum(1) * old.shape[2]).clamp_min(1)
        value = squares / numbers if self.norm == "mse" else _root(squares)
        return value[:, None].expand(-1, x.shape[1])


def _root(squares: Tensor) -> Tensor:
    # a plain square root would have an infinite gradient at 0
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)
