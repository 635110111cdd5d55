"""Comparisons for the laws: tensors, outputs of two calls, and decoding states."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from kinformer.core.layer import Out, State
from kinformer.core.state import UncastState
from kinformer.laws.support.findings import Broken


def agree(actual: Tensor, expected: Tensor, sentence: str, *, pos: Tensor | None = None, bound: float = 1e-10) -> None:
    """Raise Broken (a law does not hold) unless two tensors agree; name the entry with the largest error.

    actual, expected: the tensors.
    sentence: beginning of the error text, which says what differs.
    pos: positions [B T] of the first two dimensions; entries at padding (-1) are not compared.
    bound: largest allowed difference. It is multiplied by the largest expected absolute value, or by 1 if that is
        larger.
    """
    if actual.shape != expected.shape:
        raise Broken(f"{sentence}: the shape is {tuple(actual.shape)} instead of {tuple(expected.shape)}")
    if pos is not None:
        mark = (pos >= 0).view(*pos.shape, *[1] * (expected.dim() - 2))
        actual, expected = torch.where(mark, actual, 0.0), torch.where(mark, expected, 0.0)
    actual, expected = actual.detach().double(), expected.detach().double()
    error = torch.where(actual == expected, 0.0, (actual - expected).abs()).nan_to_num(nan=torch.inf)
    scale = max(1.0, float(expected.abs().nan_to_num(posinf=0.0).max())) if expected.numel() else 1.0
    if not error.numel() or float(error.max()) <= bound * scale:
        return
    place = tuple(int(n) for n in torch.unravel_index(error.argmax(), error.shape))
    spot = f"entry {list(place)}" if pos is None else f"row {place[0]}, position {int(pos[place[0], place[1]])}"
    raise Broken(f"{sentence}: {spot} is {float(actual[place]):.6g} instead of {float(expected[place]):.6g}")


def agree_out(actual: Out, expected: Out, sentence: str, pos: Tensor | None, *, bound: float = 1e-10) -> None:
    """Raise Broken (a law does not hold) unless the output y and the results `aux` of two calls agree.

    actual, expected: outputs of the calls.
    sentence, pos, bound: as in `agree`: beginning of the error text, positions, and largest difference.
    """
    agree(actual.y, expected.y, sentence, pos=pos, bound=bound)
    agree_names(actual.aux, expected.aux, sentence)
    for name, value in expected.aux.items():
        agree(actual.aux[name], value, f"{sentence} (aux {name!r})", pos=pos if value.dim() else None, bound=bound)


def agree_names(actual: Mapping[str, Any], expected: Mapping[str, Any], sentence: str) -> None:
    """Raise Broken (a law does not hold) unless the results `aux` of two calls have the same names.

    actual, expected: the mappings `aux`.
    sentence: beginning of the error text, which says what differs.
    """
    if actual.keys() != expected.keys():
        raise Broken(f"{sentence}: the names of results (aux) are {sorted(actual)} instead of {sorted(expected)}")


def agree_gradients(
    actual: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None], sentence: str, *, bound: float = 1e-10
) -> None:
    """Raise Broken (a law does not hold) unless gradients with the same name agree.

    actual, expected: gradients by the names of parameters. None, no gradient, agrees with a gradient of zeros.
    sentence, bound: as in `agree`: beginning of the error text, and largest difference.
    """
    for name, value in expected.items():
        mine = actual[name]
        if value is not None and mine is not None:
            agree(mine, value, f"{sentence} (the gradient of {name})", bound=bound)
        elif value is not mine and any(
            gradient is not None and bool((gradient != 0).any()) for gradient in (value, mine)
        ):
            raise Broken(f"{sentence} (the gradient of {name}): only one of the two calls has it")


def join_outs(outs: list[Out]) -> Out:
    """Join the outputs of consecutive chunks of a row along the tokens; the state is the last one.

    outs: the outputs, in order.

    Errors: Broken if a penalty of a chunk (a single number in `aux`) differs from the first chunk's.
    """
    aux = {}
    for name, value in outs[0].aux.items():
        pieces = [out.aux[name] for out in outs]
        aux[name] = torch.cat(pieces, 1) if value.dim() else value
        for piece in pieces if not value.dim() else ():
            agree(piece, value, f"the penalty {name!r} differs between chunks")
    return Out(torch.cat([out.y for out in outs], 1), outs[-1].state, aux)


def agree_states(actual: State, expected: State, sentence: str) -> None:
    """Raise Broken (a law does not hold) unless two decoding states agree.

    Slots (places of a cache) are compared at the positions that both states keep. A slot that only one state keeps may
    be one that no later query reads. If a later query reads it, the next output differs.

    actual, expected: the states.
    sentence: beginning of the error text, which says what differs.
    """
    mine, theirs = dict(entries(actual)), dict(entries(expected))
    if mine.keys() != theirs.keys():
        raise Broken(f"{sentence}: the state holds {sorted(mine)} instead of {sorted(theirs)}")
    for name, (value, pos) in theirs.items():
        other, other_pos = mine[name]
        axis = None if pos is None or other_pos is None else _slots(value, pos)
        for n in range(len(value)):
            actual_row, expected_row = other[n], value[n]
            if axis is not None and pos is not None and other_pos is not None:
                common = sorted(set(pos[n].tolist()) & set(other_pos[n].tolist()) - {-1})
                actual_row, expected_row = (
                    _select_positions(x, p[n], common, axis - 1)
                    for x, p in ((actual_row, other_pos), (expected_row, pos))
                )
            agree(actual_row, expected_row, f"{sentence}, state {name}[row {n}]")


def entries(
    state: State, name: str = "", pos: Tensor | None = None
) -> Iterator[tuple[str, tuple[Tensor, Tensor | None]]]:
    """Yield the name and value of every tensor in a decoding state, with the positions of its slots.

    Slots are the places of a cache. A tensor without slots has None in place of the positions.

    state: the state, a tree of tuples, lists and dicts.
    name: name of the state, which begins the names of its tensors.
    pos: positions of the slots of an enclosing state, if any.
    """
    if isinstance(state, Tensor):
        yield name, (state, pos)
        return
    if isinstance(state, UncastState):
        state = state.inside
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        inside = dict(zip(state._fields, state, strict=True))
    else:
        inside = dict(state) if isinstance(state, dict) else {str(n): leaf for n, leaf in enumerate(state)}
    own_pos = inside.get("pos")
    pos = own_pos if isinstance(own_pos, Tensor) and own_pos.dim() == 2 else pos
    for key, leaf in inside.items():
        yield from entries(leaf, f"{name}.{key}" if name else key, pos)


def _slots(leaf: Tensor, pos: Tensor) -> int | None:
    """Return the axis of a leaf with a slot for each entry of pos [B C].

    The third axis is preferred in leaves with heads (4 axes).
    """
    order = (2, 1, 3) if leaf.dim() >= 4 else (1, 2)
    return next((axis for axis in order if axis < leaf.dim() and leaf.shape[axis] == pos.shape[1]), None)


def _select_positions(row: Tensor, pos: Tensor, positions: list[int], axis: int) -> Tensor:
    where = {int(p): n for n, p in enumerate(pos)}
    return row.index_select(axis, torch.tensor([where[p] for p in positions], dtype=torch.long))
