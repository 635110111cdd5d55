"""Weights that are lent: whose attention weights each layer reads by."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.nn.mechanisms.lending import Lending
from kinformer.nn.mechanisms.reused import Reused
from kinformer.pages.pictures.support.layers import attentions
from kinformer.pages.pictures.support.panel import Picture, grid

KINDS = ("made here, of queries and keys", "of a layer beneath, with values of its own")


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A line for each layer of an example in which some are read by the weights of another."""
    layers = list(attentions(example).values()) if isinstance(example, nn.Module) else []
    if not any(isinstance(one.mechanism, Reused) for one in layers):
        return
    kind, lender = torch.zeros(len(layers), len(layers), dtype=torch.long), 0
    for n, layer in enumerate(layers):
        reused = isinstance(layer.mechanism, Reused)
        kind[n, lender if reused else n] = 1 + reused
        lender = n if isinstance(layer.mechanism, Lending) else lender
    yield Picture(
        "the attention weights that each layer reads by", KINDS, (grid("", kind),), line="layer", column="layer"
    )
