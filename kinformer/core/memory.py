"""Memory: what widens what a layer may read by keeping hidden states of the past."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.heads import Room
from kinformer.core.layer import Context, State
from kinformer.core.pattern import Pattern, pairs


class Memory(nn.Module, ABC):
    """Hidden states kept from chunk to chunk, from which a layer projects further keys and values in training.

    It keeps hidden states rather than keys, because keys that were projected before the last update train their
    projection wrongly. What lies in an earlier segment is read without gradients, wherever a row was cut. In training
    the memory is always there: a call without a state begins a fresh one.

    `kind` is the class of its state: by it Attention tells a memory's state from a cache of keys. `reads` is the set of
    keys that a query finds, the own segment of `length` positions and what is kept before it: the layer's pattern must
    say the same. `cached` says that a cache of keys under that pattern holds all that it remembers, so that decoding
    needs no memory; where it does not, the memory is there in decoding too, and in calls without a state.
    """

    kind: type
    length: int
    reads: Pattern
    cached: bool = True

    @abstractmethod
    def start(self, room: Room, width: int) -> State:
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

    def cuts(self, ctx: Context) -> list[int]:
        """Columns of a chunk before which it must be cut, so that what follows reads what was remembered before it."""
        return []

    def agree(self, pattern: Pattern, heads: int) -> None:
        """ValueError unless this memory and a layer's pattern say the same.

        No query may want a key that is not kept, and no key may be kept that no query of the segment reads.
        """
        back = self.reads.reach()[0]
        first = -(-int(back) // self.length) * self.length
        at = torch.arange(first + self.length)
        q, k = at[None, None, first:], at[None, None]
        wanted = pairs(pattern, q, k, range(heads)).any(1)[0]  # [T S]: by any head
        kept = pairs(self.reads, q, k, range(1))[0, 0]
        for what, wrong in (
            ("reads keys that the memory does not keep", wanted & ~kept & (k <= q.mT)[0]),
            ("never reads some of what the memory keeps", kept.any(0) & ~wanted.any(0)),
        ):
            if wrong.any():
                name = type(self).__name__
                raise ValueError(f"the layer's pattern {pattern} {what}; give it Causal() & {self.reads}, the {name}'s")
