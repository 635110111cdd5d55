"""Rotary: rotations of queries and keys that make their product depend on the distance only."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least, check_in_range, check_option, check_optional_part
from kinformer.core.example import Example
from kinformer.core.position import Rotation
from kinformer.core.rotary_scaling import RotaryScaling
from kinformer.nn.positions.sinusoidal import angular
from kinformer.nn.scalings.llama3 import Llama3Scaling
from kinformer.nn.scalings.ntk import NTKAware
from kinformer.nn.scalings.pi import PositionInterpolation
from kinformer.nn.scalings.yarn import YaRN

Pairs = Literal["interleaved", "half"]


class Rotary(Rotation):
    """RoPE: rotation of pair n of a head's dimensions by the angle pos * base^(-2n/turned).

    Llama and GPT-J use it. It has no parameters and no fixed length, but at distances longer than in training a model
    predicts worse. A `scaling` such as `YaRN` makes a trained model read longer rows.

    head_dim: width of a query.
    base: number that sets the wavelengths; the longest is nearly 2 pi * base positions.
    pairs: dimensions of pair n: (2n, 2n+1) if "interleaved", as in the paper, or (n, n + turned/2) if "half", as in
        Llama and GPT-NeoX.
    turned: number of dimensions that rotate, all by default; the others stay unchanged (partial rotary).
    scaling: change of the frequencies for rows longer than in training, such as YaRN(4, 4096); None for none.

    Errors: ValueError if the number of rotated dimensions is odd or larger than head_dim.

    Source: Su et al., 2021, arXiv:2104.09864, section 3.2.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        pairs: Pairs = "interleaved",
        turned: int | None = None,
        scaling: RotaryScaling | None = None,
    ):
        super().__init__()
        self.head_dim = check_at_least("head_dim", head_dim, 1)
        self.turned = head_dim if turned is None else check_at_least("turned", turned, 0)
        if self.turned % 2 or self.turned > head_dim:
            raise ValueError(
                f"Rotary turns pairs of dimensions: got {self.turned} dimensions, expected an even number, at most "
                f"head_dim={head_dim}"
            )
        self.base, self.pairs = check_in_range("base", base, 1, math.inf), check_option("pairs", pairs, Pairs)
        self.scaling = check_optional_part("scaling", scaling, RotaryScaling, "a scaling, such as YaRN(4, 4096)")

    def forward(self, x: Float[Tensor, "B H T K"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]:
        if x.shape[-1] != self.head_dim:
            raise ValueError(
                f"Rotary({self.head_dim}) got heads of width {x.shape[-1]}, expected {self.head_dim}. Give "
                f"Rotary({x.shape[-1]}), or turned= to turn only some dimensions"
            )
        return self._turn(x, pos, 1.0 if self.scaling is None else self.scaling.attention_scaling)

    def move(self, x: Float[Tensor, "B H T K"], distance: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]:
        """Return rotated queries or keys at other positions.

        Rotations add up, so the result equals the rotation of the unrotated vectors by the new positions.

        x: vectors that `forward` has rotated by their positions.
        distance: new position minus old position.
        """
        return self._turn(x, distance, 1.0)

    def _turn(self, x: Float[Tensor, "B H T K"], pos: Int[Tensor, "B T"], factor: float) -> Float[Tensor, "B H T K"]:
        """Rotate by angles, and multiply the rotated dimensions by a factor."""
        # angles of far positions need more digits than bfloat16 has
        dtype = torch.promote_types(x.dtype, torch.float32)
        turns = angular(self.turned, dtype, x.device, self.base)
        turns = turns if self.scaling is None else self.scaling.scale(turns, self.base)
        angle = pos[:, None, :, None].to(dtype) * turns  # [B 1 T turned/2]
        cos, sin = angle.cos(), angle.sin()
        if factor != 1:
            cos, sin = cos * factor, sin * factor
        turned, rest = x[..., : self.turned].to(dtype), x[..., self.turned :]
        if self.pairs == "half":
            a, b = turned.chunk(2, -1)
            y = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        else:
            a, b = turned[..., ::2], turned[..., 1::2]
            y = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        return torch.cat([y.to(x.dtype), rest], -1) if rest.shape[-1] else y.to(x.dtype)


EXAMPLES = (
    lambda: Rotary(8),
    lambda: Rotary(8, pairs="half", turned=4),
    lambda: Rotary(8, scaling=PositionInterpolation(4)),
    lambda: Rotary(8, scaling=NTKAware(4)),
    lambda: Rotary(8, scaling=YaRN(4, 400, attention_factor=1.0)),
    lambda: Rotary(8, scaling=Llama3Scaling(8, length=400)),
    Example(
        lambda: Rotary(8, scaling=YaRN(4, 400)),
        breaks={"rotation": "YaRN multiplies queries and keys by 0.1 ln(factor) + 1, so that attention gets sharper"},
    ),
)
