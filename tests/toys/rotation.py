"""Turn: the first two numbers of each head, turned by their position."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.position import Rotation


class Turn(Rotation):
    """A rotation by `angle` radians per position, of one pair of numbers. The rest of a head knows no position."""

    def __init__(self, angle: float):
        super().__init__()
        self.angle = angle

    def forward(self, x: Float[Tensor, "B H T K"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]:
        exact = torch.promote_types(x.dtype, torch.float32)  # angles of far positions need the digits
        by = self.angle * pos.clamp_min(0)[:, None].to(exact)  # [B 1 T]
        a, b, rest = x[..., 0], x[..., 1], x[..., 2:]
        turned = torch.stack([a * by.cos() - b * by.sin(), a * by.sin() + b * by.cos()], -1)
        return torch.cat([turned.to(x.dtype), rest], -1)


EXAMPLES = (lambda: Turn(0.3),)
