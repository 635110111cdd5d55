"""Mechanism: how queries read keys."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.layer import Context, Out, State

if TYPE_CHECKING:
    from kinformer.core.read import Read


class NoState(TypeError):
    """Raised by `start` of what reads a whole sequence at once and so has no state to decode with.

    Its text says what to do.
    """


class Mechanism(nn.Module, ABC):
    """Queries, keys and values per head in, one read per query out. It sees heads, never the layer's input.

    What it wants from the input itself (a gate, a span, further projections) it asks for by `sides`: so many numbers
    per head and name, which Attention projects with a bias. A state comes in and goes out; without one, none is made.
    """

    def sides(self, k_dim: int, v_dim: int) -> Mapping[str, int]:
        """How many numbers per head this mechanism wants from the layer's input, by name."""
        return {}

    @abstractmethod
    def start(
        self,
        batch: int,
        length: int,
        key_heads: int,
        k_dim: int,
        v_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> State:
        """The state before the first token; raises `NoState` with advice where there is none."""

    @abstractmethod
    def forward(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        v: Float[Tensor, "B G S V"],
        k_pos: Int[Tensor, "B S"],
        state: State | None,
        ctx: Context,
        sides: Mapping[str, Float[Tensor, "B H T n"]],
    ) -> Out: ...

    def mass(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        k_pos: Int[Tensor, "B S"],
        read: "Read",
        ctx: Context,
        sides: Mapping[str, Float[Tensor, "B H T n"]],
    ) -> Float[Tensor, "B S"]:
        """How much attention each key got in `read`, averaged over heads: what a most-used memory asks for."""
        raise TypeError(
            f"{type(self).__name__} does not tell how much attention a key got; use Softmax under this memory"
        )
