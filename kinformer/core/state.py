"""State: trees of batch-first tensors, the operations on them, and KV, the cache of keys and values."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.layer import State
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern


def map_state(f: Callable[[str, Tensor], Tensor], state: State, name: str = "") -> State:
    """Apply f(leaf name, leaf) to every tensor.

    A leaf is named by its field or key, inside a plain sequence by its parent.
    """
    if isinstance(state, Tensor):
        return f(name, state)
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(map_state(f, leaf, field) for field, leaf in zip(state._fields, state, strict=True)))
    if isinstance(state, tuple | list):
        return type(state)(map_state(f, leaf, name) for leaf in state)
    if isinstance(state, dict):
        return {key: map_state(f, leaf, key) for key, leaf in state.items()}
    raise TypeError(
        f"a state holds tensors in tuples, lists and dicts; got {type(state).__name__} at {name or 'its root'}"
    )


def leaves(state: State) -> list[tuple[str, Tensor]]:
    """Every (name, tensor) of a state, in order."""
    found: list[tuple[str, Tensor]] = []

    def collect(name: str, leaf: Tensor) -> Tensor:
        found.append((name, leaf))
        return leaf

    map_state(collect, state)
    return found


def select(state: State, rows: Int[Tensor, " R"]) -> State:
    """The state of the given batch rows, which may repeat (beam search)."""
    return map_state(lambda _, leaf: leaf.index_select(0, rows.to(leaf.device)), state)


def fork(state: State) -> State:
    """A copy that can be continued apart from its origin (a state that was handed to a layer is spent)."""
    return map_state(lambda _, leaf: leaf.clone(), state)


def detach(state: State) -> State:
    """The same state, cut from the graph that made it."""
    return map_state(lambda _, leaf: leaf.detach(), state)


def reset(state: State, rows: Bool[Tensor, " B"]) -> State:
    """The state with the marked rows as fresh as `start` made them: -1 in leaves named pos, 0 in others.

    A part of a state whose fresh value is another one defines its own `reset(rows)`.
    """
    if hasattr(state, "reset"):
        return state.reset(rows)
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(_fresh(field, leaf, rows) for field, leaf in zip(state._fields, state, strict=True)))
    if isinstance(state, tuple | list):
        return type(state)(reset(leaf, rows) for leaf in state)
    if isinstance(state, dict):
        return {key: _fresh(key, leaf, rows) for key, leaf in state.items()}
    return _fresh("", state, rows)


def _fresh(name: str, leaf: State, rows: Tensor) -> State:
    if not isinstance(leaf, Tensor):
        return reset(leaf, rows)
    mark = rows.to(leaf.device).view(-1, *[1] * (leaf.dim() - 1))
    return torch.where(mark, torch.full_like(leaf, -1 if name == "pos" else 0), leaf)


class KV(NamedTuple):
    """Keys and values with their absolute positions.

    `pos` -1 marks an empty slot; `now` is each row's next position.
    """

    k: Float[Tensor, "B G C K"]
    v: Float[Tensor, "B G C V"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]

    @staticmethod
    def empty(
        batch: int,
        heads: int,
        slots: int,
        k_dim: int,
        v_dim: int,
        *,
        dtype: torch.dtype | None,
        device: torch.device | None,
    ) -> "KV":
        """A cache of `slots` empty slots for `heads` key heads."""
        return KV(
            torch.zeros(batch, heads, slots, k_dim, dtype=dtype, device=device),
            torch.zeros(batch, heads, slots, v_dim, dtype=dtype, device=device),
            torch.full((batch, slots), -1, device=device),
            torch.zeros(batch, dtype=torch.long, device=device),
        )

    def join(self, k: Tensor, v: Tensor, k_pos: Tensor) -> "KV":
        """The kept keys followed by the new ones: what a chunk reads. `now` moves behind the newest position."""
        now = torch.maximum(self.now, k_pos.amax(1) + 1) if k_pos.shape[1] else self.now
        return KV(
            torch.cat([self.k, k], 2),
            torch.cat([self.v, v], 2),
            torch.cat([self.pos, k_pos.to(self.pos.dtype)], 1),
            now,
        )

    def keep(self, pattern: Pattern, slots: int) -> "KV":
        """The slots that a later query may still read, in at least `slots` slots.

        More where more are live, so nothing live is lost.
        """
        order, pos = survivors(self.pos, self.now, pattern, slots)
        rows = order[:, None, :, None]
        return KV(
            self.k.take_along_dim(rows, 2), self.v.take_along_dim(rows, 2), pos.take_along_dim(order, 1), self.now
        )


def survivors(
    pos: Int[Tensor, "B C"], now: Int[Tensor, " B"], pattern: Pattern, slots: int
) -> tuple[Int[Tensor, "B R"], Int[Tensor, "B C"]]:
    """Which slots to keep, live ones last and in order (a stable sort of `live`); positions, -1 for the dead."""
    live = (pos >= 0) & pattern.live(pos, now[:, None])
    room = max(slots, int(live.sum(1).amax())) if pos.numel() else slots
    order = torch.sort(live.to(torch.uint8), dim=1, stable=True).indices
    return order[:, max(0, pos.shape[1] - room) :], torch.where(live, pos, -1)


def start_keys(
    pattern: Pattern,
    batch: int,
    length: int,
    heads: int,
    k_dim: int,
    v_dim: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> KV:
    """An empty cache that is large enough for rows of `length` tokens under the pattern.

    NoState where the pattern reads ahead.
    """
    _no_peeking(pattern)
    return KV.empty(batch, heads, pattern.capacity(length), k_dim, v_dim, dtype=dtype, device=device)


def carry(
    state: KV | None,
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S V"],
    k_pos: Int[Tensor, "B S"],
    pattern: Pattern,
) -> tuple[tuple[Tensor, Tensor, Tensor], KV | None]:
    """What a chunk reads (kept and new keys, values, positions), and the state after it.

    Without a state, the new keys and None.
    """
    if state is None:
        return (k, v, k_pos), None
    _no_peeking(pattern)
    both = state.join(k, v, k_pos)
    return (both.k, both.v, both.pos), both.keep(pattern, state.pos.shape[1])


def _no_peeking(pattern: Pattern) -> None:
    ahead = pattern.reach()[1]
    if ahead > 0:
        raise NoState(
            f"{pattern} reads up to {ahead} positions ahead, so it cannot be decoded with a cache; "
            "use Causal() & it, or generate(..., recompute=True)"
        )
