"""Matrices: weights of a shortener for keys and for values, one set per head or one for all heads."""

from typing import Literal

import torch
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.heads import Keys

Which = Literal["k", "v"]


class Matrices(nn.Module):
    """Weights of a shortener: a tensor for keys and one for values, each with a first dimension of heads.

    heads: number of heads of keys and of values, each with its own tensor; None gives one tensor for all heads.
    tied: whether keys and values share one tensor.
    shapes: shape of one head's tensor, for keys and for values.

    Errors: ValueError if the shapes of tied tensors differ.
    """

    def __init__(self, heads: int | None, tied: bool, *shapes: tuple[int, ...]):
        super().__init__()
        self.heads = None if heads is None else check_at_least("heads", heads, 1)
        k, v = (nn.Parameter(torch.empty(self.heads or 1, *shape)) for shape in shapes)
        if check_flag("tied", tied) and k.shape != v.shape:
            raise ValueError(
                f"tied=True needs matrices of one shape: got {list(k.shape)} for keys and {list(v.shape)} for "
                "values. Make the widths equal"
            )
        self.k, self.v = k, None if tied else v

    def matrix(self, name: str, like: Tensor) -> Tensor:
        """Return the tensor of keys ("k") or of values ("v") in the dtype of `like`."""
        matrix = self.k if name == "k" or self.v is None else self.v
        return matrix.to(like.dtype)

    def check(self, part: str, keys: Keys) -> None:
        """Raise ValueError if `keys` have other heads than these matrices, or additional projections.

        part: name of the shortener, for the message.
        keys: keys and values that will be shortened.
        """
        got_heads = {keys.k.shape[1], keys.v.shape[1]}
        if self.heads is not None and got_heads != {self.heads}:
            raise ValueError(
                f"{part} was made for {self.heads} heads of keys and values, but got {keys.k.shape[1]} and "
                f"{keys.v.shape[1]}. Create it with heads={keys.k.shape[1]}, or without heads for one matrix "
                "that all heads share"
            )
        if keys.extras:
            raise ValueError(
                f"{part} shortens only keys and values, but the mechanism needs {min(keys.extras)!r} of each "
                "key. Use MeanPooled"
            )
