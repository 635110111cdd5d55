"""COMPRESSION: what is lost when a memory is compressed, told by what attention reads from it or by rebuilding it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.loss import Penalty

Norm = Literal["l2", "mse"]


class CompressionLoss(nn.Module, ABC):
    """A loss for each token of a segment, of the states that are compressed next; it trains the compression alone.

    `norm="l2"` is the Euclidean norm of what differs, as in the paper; "mse" the mean of its squares. Every input is
    detached but what the compression has made. Weigh the loss in a model by `penalties={loss.key: 1.0}`.
    """

    key: str

    def __init__(self, norm: Norm = "l2"):
        super().__init__()
        self.norm = norm

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "B T D"],
        old: Float[Tensor, "B S D"],
        old_real: Bool[Tensor, "B S"],
        new: Float[Tensor, "B N D"],
        new_real: Bool[Tensor, "B N"],
        read: Callable,
    ) -> Float[Tensor, "B T"]:
        """`x` are the segment's states, `old` become `new`, `read(x, source, real)` is attention by content alone."""


class AttentionReconstruction(CompressionLoss):
    """How far what each token reads in the old states is from what it reads in the compressed ones, over all heads.

    The better of the two losses in the paper: it keeps what attention looks at and may lose the rest. The paper takes
    one norm over all tokens of a segment; here each token has its own, so that it does not matter how a row is cut.
    Source: Rae et al., 2019, arXiv:1911.05507, algorithm 2.
    """

    key = "attention_reconstruction"

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        old: Float[Tensor, "B S D"],
        old_real: Bool[Tensor, "B S"],
        new: Float[Tensor, "B N D"],
        new_real: Bool[Tensor, "B N"],
        read: Callable,
    ) -> Float[Tensor, "B T"]:
        squares = (read(x, old, old_real).y - read(x, new, new_real).y).square()
        return squares.mean((1, 3)) if self.norm == "mse" else _root(squares.sum((1, 3)))


class AutoEncoding(CompressionLoss):
    """How far the old states are from what a transposed convolution makes of the compressed ones; alike for all tokens.

    The loss that tries to keep everything; it is the only one that trains a decoder beside the compression. `d` is the
    width, `rate` the compression's. Source: Rae et al., 2019, arXiv:1911.05507, section 3.2.
    """

    key = "autoencoding"

    def __init__(self, d: int, rate: int, norm: Norm = "l2"):
        super().__init__(norm)
        self.decoder = nn.ConvTranspose1d(d, d, rate, stride=rate)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        old: Float[Tensor, "B S D"],
        old_real: Bool[Tensor, "B S"],
        new: Float[Tensor, "B N D"],
        new_real: Bool[Tensor, "B N"],
        read: Callable,
    ) -> Float[Tensor, "B T"]:
        gap = torch.where(old_real[..., None], self.decoder(new.mT).mT - old, 0.0)
        squares = gap.square().sum((1, 2))
        numbers = (old_real.sum(1) * old.shape[2]).clamp_min(1)
        value = squares / numbers if self.norm == "mse" else _root(squares)
        return value[:, None].expand(-1, x.shape[1])


def _root(squares: Tensor) -> Tensor:
    # a plain square root would have an infinite gradient at 0
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1.0).sqrt(), 0.0)


ATTENTION_RECONSTRUCTION = Penalty(AttentionReconstruction.key, lambda name: "memory.compression." in name)
AUTOENCODING = Penalty(AutoEncoding.key, lambda name: "memory.compression." in name or "memory.loss.decoder." in name)

EXAMPLES = (ATTENTION_RECONSTRUCTION, AUTOENCODING)
