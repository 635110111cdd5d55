"""Memory: what widens what a layer may read by keeping hidden states of the past."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.layer import Context, State


class Memory(nn.Module, ABC):
    """Hidden states kept from chunk to chunk, detached, from which a layer projects further keys and values in
    training.

    It keeps hidden states rather than keys, because keys that were projected before the last update train their
    projection wrongly. `kind` is the class of its state: by it Attention tells a memory's state from a cache of keys.
    `cached` says that a cache of keys under the mechanism's pattern holds all that it remembers, so that decoding needs
    no memory; where it does not, the memory is there in decoding too, and in calls without a state.
    """

    kind: type
    cached: bool = True

    @abstractmethod
    def start(
        self,
        batch: int,
        length: int,
        width: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> State:
        """The memory before the first token."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B T D"], state: State, ctx: Context, read: Callable
    ) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"], State, dict[str, Tensor]]:
        """What to read (states and their positions), the next state, and aux.

        `read(x, source, real=None) -> Read` is the layer's own attention by content alone, with detached weights;
        `real` [B S] marks the states of the source that are there, where not all are.
        """

    def after(self, state: State, mass: Callable[[], Float[Tensor, "B S"]]) -> State:
        """The state once the layer has read; `mass()` gives each source slot's share of the attention."""
        return state

    def cuts(self, pos: Int[Tensor, "B T"]) -> list[int]:
        """Columns of a chunk before which it must be cut, so that what follows reads what was remembered before it."""
        return []
