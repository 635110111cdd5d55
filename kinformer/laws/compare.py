"""What laws compare with: tensors that must agree, states slot by slot, and the smallest example that fails."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kinformer.core.layer import Out, State
from kinformer.laws.broken import Broken


def agree(got: Tensor, want: Tensor, sentence: str, *, pos: Tensor | None = None, bound: float = 1e-10) -> None:
    """Broken, with the worst place, unless two tensors, where pos >= 0, are within `bound` of their scale."""
    if got.shape != want.shape:
        raise Broken(f"{sentence}: the shape is {tuple(got.shape)} instead of {tuple(want.shape)}")
    if pos is not None:
        mark = (pos >= 0).view(*pos.shape, *[1] * (want.dim() - 2))
        got, want = torch.where(mark, got, 0.0), torch.where(mark, want, 0.0)
    got, want = got.detach().double(), want.detach().double()
    error = torch.where(got == want, 0.0, (got - want).abs()).nan_to_num(nan=torch.inf)
    scale = max(1.0, float(want.abs().nan_to_num(posinf=0.0).max())) if want.numel() else 1.0
    if not error.numel() or float(error.max()) <= bound * scale:
        return
    at = torch.unravel_index(error.argmax(), error.shape)
    place = tuple(int(n) for n in at)
    spot = f"entry {list(place)}" if pos is None else f"row {place[0]}, position {int(pos[place[0], place[1]])}"
    raise Broken(f"{sentence}: {spot} is {float(got[place]):.6g} instead of {float(want[place]):.6g}")


def agree_out(got: Out, want: Out, sentence: str, pos: Tensor, *, bound: float = 1e-10) -> None:
    """The same for y and aux of two calls, at real positions."""
    agree(got.y, want.y, sentence, pos=pos, bound=bound)
    agree_names(got.aux, want.aux, sentence)
    for name, value in want.aux.items():
        what = f"{sentence} (aux {name!r})"
        agree(got.aux[name], value, what, pos=pos if value.dim() else None, bound=bound)


def agree_names(got: Mapping[str, Any], want: Mapping[str, Any], sentence: str) -> None:
    """Broken unless two mappings have the same names."""
    if got.keys() != want.keys():
        raise Broken(f"{sentence}: the aux are {sorted(got)} instead of {sorted(want)}")


def joined(outs: list[Out]) -> Out:
    """The calls of consecutive chunks as one: y and aux per token side by side; a penalty must be the same in all."""
    aux = {}
    for name, value in outs[0].aux.items():
        pieces = [out.aux[name] for out in outs]
        aux[name] = torch.cat(pieces, 1) if value.dim() else value
        if not value.dim():
            for piece in pieces:
                agree(piece, value, f"the penalty {name!r} depends on the chunk")
    return Out(torch.cat([out.y for out in outs], 1), outs[-1].state, aux)


def agree_states(got: State, want: State, sentence: str) -> None:
    """Broken unless two states hold the same, slots taken in order of position."""
    mine, theirs = settled(got), settled(want)
    if mine.keys() != theirs.keys():
        raise Broken(f"{sentence}: the state holds {sorted(mine)} instead of {sorted(theirs)}")
    for name in theirs:
        agree(mine[name], theirs[name], f"{sentence}, state {name}")


def settled(state: State, name: str = "") -> dict[str, Tensor]:
    """Every leaf of a state, row by row; leaves with slots hold the live ones alone, in order of position."""
    if isinstance(state, Tensor):
        return {f"{name}[row {n}]": row for n, row in enumerate(state)}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        entries = dict(zip(state._fields, state, strict=True))
    else:
        entries = dict(state) if isinstance(state, dict) else {str(n): leaf for n, leaf in enumerate(state)}
    pos = entries.get("pos")
    found: dict[str, Tensor] = {}
    for key, leaf in entries.items():
        full = f"{name}.{key}" if name else key
        axis = _slots(leaf, pos)
        if pos is None or axis is None:
            found |= settled(leaf, full)
        else:
            found |= {f"{full}[row {n}]": row.index_select(axis - 1, _live(pos[n])) for n, row in enumerate(leaf)}
    return found


def _slots(leaf: State, pos: State) -> int | None:
    """The axis of a leaf that has a slot for each entry of pos [B C]; with heads (4 axes) it is the third."""
    if not isinstance(leaf, Tensor) or not isinstance(pos, Tensor) or pos.dim() != 2:
        return None
    order = (2, 1, 3) if leaf.dim() >= 4 else (1, 2)
    return next((axis for axis in order if axis < leaf.dim() and leaf.shape[axis] == pos.shape[1]), None)


def _live(pos: Tensor) -> Tensor:
    order = pos.argsort()
    return order[pos[order] >= 0]


def smallest(attempt: Callable[..., None], length: int, *rest: Any) -> None:
    """Try a length; where it breaks, say so with the shortest length that does."""
    try:
        attempt(length, *rest)
    except Broken as found:
        for shorter in range(2, length):
            try:
                attempt(shorter, *rest)
            except Broken as smaller:
                raise smaller from None
        raise found from None
