"""State: trees of batch-first tensors, and the operations on them."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.layer import State
from kinformer.core.pattern import Pattern

OfLeaf = Callable[[str, Tensor], Tensor]  # of a leaf's name and the leaf


class UncastState:
    """A state whose numbers must keep their precision, in an object that nothing looks into.

    Wrappers that cast a layer's inputs to bfloat16 (FSDP2's mixed precision) walk through tuples, dicts and
    dataclasses; sums in float32 would lose digits there that casting back does not bring back.
    """

    __slots__ = ("inside",)

    def __init__(self, inside: State):
        self.inside = inside


def map_state(f: OfLeaf, state: State, name: str = "", *, at: Callable[[State], State | None] | None = None) -> State:
    """Apply f(leaf name, leaf) to every tensor.

    A leaf is named by its field or key, inside a plain sequence by its parent. A part of which `at` makes something
    is that, and is not looked into. A `Pattern` stays as it is.
    """
    if at is not None and (replaced := at(state)) is not None:
        return replaced
    if isinstance(state, Tensor):
        return f(name, state)
    if isinstance(state, Pattern):
        return state
    if isinstance(state, UncastState):
        return UncastState(map_state(f, state.inside, name, at=at))
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(map_state(f, leaf, n, at=at) for n, leaf in zip(state._fields, state, strict=True)))
    if isinstance(state, tuple | list):
        return type(state)(map_state(f, leaf, name, at=at) for leaf in state)
    if isinstance(state, dict):
        return {key: map_state(f, leaf, key, at=at) for key, leaf in state.items()}
    raise TypeError(
        f"a state holds tensors in tuples, lists and dicts; got {type(state).__name__} at {name or 'its root'}"
    )


def leaves(state: State) -> list[tuple[str, Tensor]]:
    """Every (name, tensor) of a state, in order."""
    pairs: list[tuple[str, Tensor]] = []

    def collect(name: str, leaf: Tensor) -> Tensor:
        pairs.append((name, leaf))
        return leaf

    map_state(collect, state)
    return pairs


def select(state: State, rows: Int[Tensor, " R"]) -> State:
    """The state of the given batch rows, which may repeat (beam search)."""
    return map_state(_once_per_tensor(lambda _, leaf: leaf.index_select(0, rows.to(leaf.device))), state)


def concatenate(states: Sequence[State]) -> State:
    """Concatenate the states of several sets of rows along the batch."""
    merged = iter([torch.cat([leaf for _, leaf in same]) for same in zip(*map(leaves, states), strict=True)])
    return map_state(lambda _, __: next(merged), states[0])


def fork(state: State) -> State:
    """A copy that can be continued apart from its origin (a state that was handed to a layer is spent)."""
    return map_state(_once_per_tensor(lambda _, leaf: leaf.clone()), state)


def detach(state: State) -> State:
    """The same state, cut from the graph that made it."""
    return map_state(_once_per_tensor(lambda _, leaf: leaf.detach()), state)


def share_positions(state: State) -> State:
    """A fresh state whose layers hold one tensor of positions where they hold equal ones.

    Positions are never written in place; layers that share them share the plan of where the next keys go.
    """
    known_positions: dict[tuple, Tensor] = {}

    def share(name: str, leaf: Tensor) -> Tensor:
        return known_positions.setdefault((name, leaf.shape, leaf.device), leaf) if name in ("pos", "now") else leaf

    return map_state(share, state)


def reset(state: State, rows: Bool[Tensor, " B"]) -> State:
    """The state with the marked rows as fresh as `start` made them: -1 in leaves named pos, 0 in others.

    A part of a state whose fresh value is another one defines its own `reset(rows)`.
    """

    def reset_leaf(name: str, leaf: Tensor) -> Tensor:
        mark = rows.to(leaf.device).view(-1, *[1] * (leaf.dim() - 1))
        return leaf.masked_fill(mark, -1 if name == "pos" else 0)

    def reset_part(part: State) -> State | None:
        return part.reset(rows) if hasattr(part, "reset") else None

    return map_state(_once_per_tensor(reset_leaf), state, at=reset_part)


def _once_per_tensor(f: OfLeaf) -> OfLeaf:
    """f for the leaves of a state: a tensor that several layers share is one afterwards too."""
    done: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}

    def apply_once(name: str, leaf: Tensor) -> Tensor:
        key = id(leaf), name == "pos"  # whose fresh value is another one
        if key not in done:
            done[key] = (leaf, f(name, leaf))
        return done[key][1]

    return apply_once
