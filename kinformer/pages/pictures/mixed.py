"""Token mixers that are no attention: how much what comes out at each token depends on what came in at each other."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer
from kinformer.nn.mixers.average_attention import AverageAttention
from kinformer.pages.pictures.support.layers import place_of
from kinformer.pages.pictures.support.panel import CELLS, Picture, shades

DRAWN = 8  # directions in which an output is looked at


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of the lowest mixer of an example."""
    for name, layer in example.named_modules() if isinstance(example, nn.Module) else ():
        if isinstance(layer, AverageAttention):
            size = length or CELLS
            level = owed(layer, torch.randn(1, size, layer.d))
            names, where = [str(n) for n in range(size)], place_of(name) if name else ""
            caption = f"{type(layer).__name__}{', ' + where if where else ''}: what each token takes of each other"
            panel = shades("", level / level.amax(-1, keepdim=True).clamp_min(1e-9), names, names)
            note = "how far an output moves with an input, of the most in each line; random tokens, before any training"
            yield Picture(caption, (), (panel,), line="token", column="of token", note=note)
            return


def owed(layer: Layer, x: Float[Tensor, "1 T D"]) -> Float[Tensor, "T T"]:
    """The size of the gradient of each token's output, in a few directions, by each token's input."""
    ways, lines = torch.randn(DRAWN, layer.d), []
    with torch.enable_grad():
        x = x.requires_grad_()
        for token in layer(x, None, Context.of(x)).y[0]:
            found = [torch.autograd.grad(token @ way, x, retain_graph=True)[0][0] for way in ways]
            lines.append(torch.stack(found).norm(dim=(0, 2)))
    return torch.stack(lines)
