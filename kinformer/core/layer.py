"""Layer, the one verb of the library: `forward(x, state, ctx) -> Out`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

if TYPE_CHECKING:
    from kinformer.core.pattern import Pattern

State = Any  # a tree of NamedTuples, tuples, lists and dicts whose leaves are batch-first tensors; () is no state
Y = TypeVar("Y")


@dataclass(frozen=True, eq=False)
class Context:
    """What comes to a layer from outside and is the same for every layer of a call.

    `pos` holds absolute positions, unique within a row; -1 is padding, for everyone. `run` promises that each row of
    `pos` is -1s, then consecutive ascending numbers, then -1s: layers that read array order as time (linear
    attention, RNNs) raise without it. `only` narrows and `also` widens what this batch may read: a pattern p becomes
    `(p | also) & only`. `source` and `source_pos` are what cross-attention reads. `below` holds what the block
    beneath sent up, and what the model itself sends in first.
    """

    pos: Int[Tensor, "B T"]
    run: bool = False
    only: Union["Pattern", None] = None
    also: Union["Pattern", None] = None
    source: Float[Tensor, "B S D"] | None = None
    source_pos: Int[Tensor, "B S"] | None = None
    below: Mapping[str, Tensor] = field(default_factory=dict)


class Out(NamedTuple, Generic[Y]):
    """What every layer returns.

    The value, the next state (None when none came in), and three mappings that are never written to.

    `aux`: per-token values [B T], which a model averages over real tokens, or penalties on parameters []; keys are
    prefixed by place ("3.0.ponder"). `up`: what the next block finds in `ctx.below`. `stats`: detached sums for
    `after_step`, none in eval.
    """

    y: Y
    state: State | None = None
    aux: Mapping[str, Tensor] = {}  # noqa: RUF012  (a NamedTuple default; law 15 holds everyone to never writing to it)
    up: Mapping[str, Tensor] = {}  # noqa: RUF012
    stats: Mapping[str, Tensor] = {}  # noqa: RUF012


class Layer(nn.Module, ABC):
    """Anything that maps a sequence to a sequence of the same width: attention, feed-forward, block, stack.

    `d` is the width of x and y. A chunked call carries the state of the previous chunk; cut anywhere, the outputs are
    the same.
    """

    d: int

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> State:
        """The state before the first token, for rows of up to `length` tokens.

        Plain tensors; touches no weight; () for no state.
        """
        return ()

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out: ...

    def remember(self, x: Float[Tensor, "B T D"], state: State, ctx: Context) -> State:
        """Update the state as `forward` would, without needing y (a layer that early exit skipped)."""
        return self.forward(x, state, ctx).state


def joined(pieces: Sequence[Out]) -> Out:
    """The Out of a row that was read in pieces, one after the other: values cut like the row are put together.

    A penalty on parameters [] is the same in every piece and counts once; stats are added; state and `up` are the last.
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first
    aux = {n: torch.cat([p.aux[n] for p in pieces], 1) if value.dim() else value for n, value in first.aux.items()}
    stats = {n: torch.stack([p.stats[n] for p in pieces]).sum(0) for n in first.stats}
    return Out(torch.cat([p.y for p in pieces], 1), last.state, aux, last.up, stats)


def prefixed(place: str | int, entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`entries` with every key moved under `place`: {"ponder": x} at 3 becomes {"3.ponder": x}."""
    return {f"{place}.{key}": value for key, value in entries.items()}


def under(place: str | int, entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a sublayer at `place` sees of `below`.

    Undotted entries as they are, entries under "place." with the prefix cut.
    """
    cut = f"{place}."
    plain = {key: value for key, value in entries.items() if "." not in key}
    return plain | {key.removeprefix(cut): value for key, value in entries.items() if key.startswith(cut)}
