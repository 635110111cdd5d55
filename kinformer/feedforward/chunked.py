"""Chunked: a feed-forward layer, some positions at a time."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kinformer.core.layer import Context, Layer, Out, State, joined
from kinformer.core.state import leaves
from kinformer.feedforward.mlp import MLP


class Chunked(Layer):
    """A layer that reads each token by itself, `size` tokens at a time: the same output, wide hidden values for few.

    Choose it for long rows, where hidden values of 4 d a token are the most there is in memory; in training they are
    computed again in the backward. Errors: ValueError for a layer with a state, which reads tokens together.
    Source: Kitaev et al., 2020, arXiv:2001.04451, section 3 ("Chunking").
    """

    def __init__(self, layer: Layer, size: int):
        super().__init__()
        if size < 1:
            raise ValueError(f"size={size}: a chunk holds at least one token")
        if leaves(layer.start(1, 1)):
            name = type(layer).__name__
            raise ValueError(f"{name} has a state, so it reads tokens together and cannot be chunked; give an MLP")
        self.d, self.layer, self.size = layer.d, layer, size

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        pieces = []
        for z, pos in zip(x.split(self.size, 1), ctx.pos.split(self.size, 1), strict=True):
            seen = Context(pos, ctx.run, ctx.only, ctx.also, ctx.source, ctx.source_pos, ctx.below)
            again = torch.is_grad_enabled() and z.requires_grad
            pieces.append(
                checkpoint(self.layer, z, state, seen, use_reentrant=False) if again else self.layer(z, state, seen)
            )
        return joined(pieces)


EXAMPLES = (lambda: Chunked(MLP(16), 4),)
COMPILES = True
