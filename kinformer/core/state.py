"""Decoding states and memories: trees of batch-first tensors, and the operations on them."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.layer import State
from kinformer.core.pattern import Pattern

OfLeaf = Callable[[str, Tensor], Tensor]  # takes a leaf's name and the leaf


class UncastState:
    """An opaque object around a decoding state that must keep its precision.

    Wrappers that cast a layer's inputs to bfloat16 (FSDP2's mixed precision) walk through tuples, dicts and
    dataclasses. Sums in float32 would lose digits there, and casting back does not restore them.

    inside: the state.
    """

    __slots__ = ("inside",)

    def __init__(self, inside: State):
        self.inside = inside


def map_state(f: OfLeaf, state: State, name: str = "", *, at: Callable[[State], State | None] | None = None) -> State:
    """Apply f(name, tensor) to every tensor of a decoding state, and return the state of the results.

    A tensor is named by its field or key; a tensor in a plain sequence has the name of the sequence. A `Pattern` stays
    as it is.

    f: the function of a name and a tensor.
    state: the state.
    name: the name of the root.
    at: a function that is called with each part of the state first. A result other than None replaces the part, and the
        part's tensors are not visited.

    Errors: TypeError if the state contains anything else.
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
        f"a state must hold tensors in tuples, lists and dicts, got {type(state).__name__} at {name or 'its root'}"
    )


def leaves(state: State) -> list[tuple[str, Tensor]]:
    """Return the name and tensor of every leaf of a decoding state, in order."""
    pairs: list[tuple[str, Tensor]] = []

    def collect(name: str, leaf: Tensor) -> Tensor:
        pairs.append((name, leaf))
        return leaf

    map_state(collect, state)
    return pairs


def state_bytes(state: State) -> int:
    """Return the bytes of a decoding state; a tensor that several layers share counts once.

    state: the state.
    """
    tensors = {id(leaf): leaf for _, leaf in leaves(state)}
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors.values())


def select(state: State, rows: Int[Tensor, " R"]) -> State:
    """Return the decoding state of the given batch rows, which may repeat (beam search).

    state: the state.
    rows: the row indices.
    """
    return map_state(
        _once_per_tensor(lambda _, leaf: leaf.index_select(0, rows.to(leaf.device))), state, at=_check_unspent
    )


def concatenate(states: Sequence[State]) -> State:
    """Concatenate the decoding states of several sets of rows along the batch."""
    merged = iter([torch.cat([leaf for _, leaf in same]) for same in zip(*map(leaves, states), strict=True)])
    return map_state(lambda _, __: next(merged), states[0])


def fork(state: State) -> State:
    """Return a copy of a decoding state that can be continued independently of the original.

    Without a copy, never use a state again after it was passed to a layer: the layer may change it in place.

    Errors: ValueError if a layer has already written into the tensors of the state, where that can be known.
    """
    return map_state(_once_per_tensor(lambda _, leaf: leaf.clone()), state, at=_check_unspent)


def branch(state: State) -> State:
    """Return a state that may read other next tokens in one call, before the original reads its own.

    Choose it to try tokens, and `fork` to continue both. Slots of a cache are shared, because a call writes only to
    slots that hold no key for its tokens. A second call would write to slots that the original still reads. Other
    tensors are copied. A call with the original spoils the branch.

    Errors: ValueError if a layer has already written into the tensors of the state, where that can be known.
    """

    def branch_part(part: State) -> State | None:
        _check_unspent(part)
        return part.branch() if hasattr(part, "branch") else None

    return map_state(_once_per_tensor(lambda _, leaf: leaf.clone()), state, at=branch_part)


def detach(state: State) -> State:
    """Return the same state, detached from the autograd graph."""
    return map_state(_once_per_tensor(lambda _, leaf: leaf.detach()), state, at=_check_unspent)


def share_positions(state: State) -> State:
    """Return a fresh decoding state in which all layers share one tensor of equal positions.

    Positions are never written in place. Layers that share them also share the choice of cache slots for the next keys.
    """
    known_positions: dict[tuple, Tensor] = {}

    def share(name: str, leaf: Tensor) -> Tensor:
        return known_positions.setdefault((name, leaf.shape, leaf.device), leaf) if name in ("pos", "now") else leaf

    return map_state(share, state)


def reset(state: State, rows: Bool[Tensor, " B"]) -> State:
    """Reset some rows of a decoding state to the values that `start` gives.

    These are -1 in tensors named pos and 0 in others.

    A part of a state with other start values defines its own method `reset(rows)`.

    state: the state.
    rows: True at the rows to reset.
    """

    def reset_leaf(name: str, leaf: Tensor) -> Tensor:
        mark = rows.to(leaf.device).view(-1, *[1] * (leaf.dim() - 1))
        return leaf.masked_fill(mark, -1 if name == "pos" else 0)

    def reset_part(part: State) -> State | None:
        _check_unspent(part)
        return part.reset(rows) if hasattr(part, "reset") else None

    return map_state(_once_per_tensor(reset_leaf), state, at=reset_part)


def _check_unspent(part: State) -> None:
    """Raise ValueError if a part of a state knows that a later call has written into it: a copy would be wrong."""
    if hasattr(part, "check_unspent"):
        part.check_unspent()


def _once_per_tensor(f: OfLeaf) -> OfLeaf:
    """Return f with a memory of its results, so that a tensor that layers share stays shared."""
    done: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}

    def apply_once(name: str, leaf: Tensor) -> Tensor:
        key = id(leaf), name == "pos"  # leaves named pos have another fresh value
        if key not in done:
            done[key] = (leaf, f(name, leaf))
        return done[key][1]

    return apply_once
