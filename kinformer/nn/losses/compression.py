"""Losses that train the compression of a memory: attention reconstruction and auto-encoding."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.checks import check_at_least, check_option
from kinformer.core.keyword_hints import KeywordHints

Norm = Literal["l2", "segment", "mse"]


class CompressionLoss(nn.Module, KeywordHints, ABC):
    """The base class of losses that train the compression of a memory, with a loss for each token.

    A compression replaces several old hidden states by one. Subclasses implement `forward`. All inputs are detached
    except the compressed states, so the loss trains only the compression and its own parameters. The memory reports the
    loss as an aux value named `key`. Set its weight in a model by `penalties={loss.key: 1.0}`.

    The attributes `d` (width) and `rate` (old states per compressed state) say for which compressions the loss is made;
    None is for any.

    norm: "l2", the Euclidean norm of the difference for each token, "segment", the paper's one norm over all tokens of
        a segment, or "mse", the mean of the squares.

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
        """Return the loss of each token, [B T].

        x, real: hidden states of the segment, and True for tokens, False for padding.
        old, old_real: hidden states that are compressed next, and True for real ones.
        new, new_real: the compressed states made of them, and True for real ones.
        read: `read(x, source, real)` is the layer's attention of x to a source, by content only, without positions.
        """


class AttentionReconstruction(CompressionLoss):
    """The distance between attention to the old hidden states and attention to the compressed ones.

    Choose it first: with `StridedConv` the paper has 0.973 bits per character on enwik8, and 0.984 with `AutoEncoding`.
    Compressed states learn to keep the information that attention uses, and may lose the rest. The distance is over the
    outputs of all heads.

    norm: as in `CompressionLoss`. "l2" takes a norm for each token, so it does not matter how a row is cut into
        segments. "segment", the paper's, takes one norm over all tokens of a segment, which is the loss of each of
        them. The segment must then be given in one call.

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
        # the two outputs are nearly equal: in half precision their difference would be only rounding error
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
    """The distance between the old hidden states and their reconstruction by a transposed convolution.

    Choose it if compressed states should keep all information of the old ones. In the paper the model has a lower loss
    with `AttentionReconstruction`. The value is the same for all tokens of a segment. It is the only compression loss
    with weights of its own, which reconstruct the old states.

    d: width of a hidden state.
    rate: number of old states per compressed state.
    norm: as in `CompressionLoss`; "l2" and "segment" both take one norm over the whole segment here.

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
