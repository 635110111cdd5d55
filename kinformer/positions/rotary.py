"""Rotary: queries and keys turned by their position, so that their product knows only the distance."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.position import Rotation


class Rotary(Rotation):
    """RoPE: pairs of dimensions turn by pos * base^(-2n/turned).

    The usual choice of today's decoders; no parameters, any length.

    `pairs` says which dimensions make pair n: (2n, 2n+1) "interleaved", as in the paper, or (n, n + turned/2) "half",
    as in Llama and GPT-NeoX. `turned` dimensions turn, the rest stay (partial rotary); all of them unless given.
    Errors: ValueError for an odd number. Source: Su et al., 2021, arXiv:2104.09864, section 3.2.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        pairs: Literal["interleaved", "half"] = "interleaved",
        turned: int | None = None,
    ):
        super().__init__()
        self.turned = head_dim if turned is None else turned
        if self.turned % 2 or self.turned > head_dim:
            raise ValueError(
                f"Rotary turns pairs of a head's {head_dim} dimensions: {self.turned} must be even and no more"
            )
        self.base, self.pairs = base, pairs

    def forward(self, x: Float[Tensor, "B H T K"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]:
        dtype = torch.promote_types(
            x.dtype, torch.float32
        )  # angles of far positions need more digits than bfloat16 has
        n = torch.arange(0, self.turned, 2, dtype=dtype, device=x.device)
        angle = pos[:, None, :, None].to(dtype) * self.base ** (-n / self.turned)
        cos, sin = angle.cos(), angle.sin()
        turned, rest = x[..., : self.turned].to(dtype), x[..., self.turned :]
        if self.pairs == "half":
            a, b = turned.chunk(2, -1)
            y = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        else:
            a, b = turned[..., ::2], turned[..., 1::2]
            y = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        return torch.cat([y.to(x.dtype), rest], -1)


EXAMPLES = (lambda: Rotary(8), lambda: Rotary(8, pairs="half", turned=4))
