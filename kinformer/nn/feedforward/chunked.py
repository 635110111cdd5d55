"""Chunked: a wrapper in which a feed-forward layer processes a few tokens at a time, to save memory."""

import torch
from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_at_least
from kinformer.core.choice import run_checkpointed
from kinformer.core.collected_outputs import concatenate_outs
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.tokenwise import check_tokenwise


class Chunked(Layer):
    """Wrapper that runs a tokenwise layer on a few tokens at a time, with the same output.

    Choose it for long rows if the hidden activations of the layer, 4 d numbers per token, need most of the memory. In
    training the backward pass computes them again.

    layer: layer to run in pieces, such as `MLP(d)`.
    size: number of tokens of a piece.

    Errors: ValueError if the layer mixes tokens, has a decoding state, needs a whole row at once, or passes values to
    the layer above (`Out.up`).

    Source: Kitaev et al., 2020, arXiv:2001.04451, section 3 ("Chunking").
    """

    def __init__(self, layer: Layer, size: int):
        super().__init__()
        check_tokenwise("layer", layer, "be chunked")
        self.d, self.layer, self.size, self.wants = layer.d, layer, check_at_least("size", size, 1), layer.wants

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        pieces = []
        for lo in range(0, max(x.shape[1], 1), self.size):
            z, piece_ctx = x[:, lo : lo + self.size], ctx.columns(lo, lo + self.size)
            recompute = torch.is_grad_enabled() and z.requires_grad
            pieces.append(
                run_checkpointed(self.layer, z, state, piece_ctx) if recompute else self.layer(z, state, piece_ctx)
            )
        return concatenate_outs(pieces)


def _example() -> Chunked:
    return Chunked(kf.MLP(16), 4)


EXAMPLES = (_example,)
