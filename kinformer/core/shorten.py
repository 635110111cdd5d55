"""Shorten: fewer keys made of many, before attention reads them."""

from abc import ABC, abstractmethod

from torch import nn

from kinformer.core.heads import Keys


class Shorten(nn.Module, ABC):
    """Keys, values and positions in, fewer of them out: pooled, convolved, projected along the row."""

    @abstractmethod
    def forward(self, keys: Keys) -> Keys: ...
