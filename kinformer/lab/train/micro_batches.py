"""Micro-batches: pieces of a batch that are learned one after the other, to need less memory."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.collected_outputs import add_stats
from kinformer.core.layer import State
from kinformer.core.loss import Loss
from kinformer.core.model import display_name
from kinformer.core.state import detach, leaves, map_state, select
from kinformer.core.warn import warn


def row_count(batch: Any) -> int:
    """Return the number of rows of a batch.

    batch: the batch: a tensor, or nested tuples, lists and dicts of tensors.

    Errors: ValueError if the batch has no rows.
    """
    count = next((part.shape[0] for part in _tensors(batch) if part.dim()), None)
    if count is None:
        raise ValueError(f"cannot split a batch of type {type(batch).__name__}: it has no rows. Leave out accumulate")
    return count


def rows(batch: Any, first: int, last: int) -> Any:
    """Return rows first .. last - 1 of every tensor in a batch; other entries stay as they are.

    batch: a tensor, or nested tuples, lists and dicts of tensors.
    first, last: index of the first row, and the index after the last row.
    """
    if isinstance(batch, Tensor):
        return batch[first:last] if batch.dim() else batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(rows(part, first, last) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(rows(part, first, last) for part in batch)
    if isinstance(batch, dict):
        return {name: rows(part, first, last) for name, part in batch.items()}
    return batch


def cut(batch: Any, pieces: int) -> list[Any]:
    """Split a batch by rows into pieces of nearly equal size; a batch with fewer rows gives fewer pieces.

    batch: the batch.
    pieces: number of pieces.
    """
    return [batch] if pieces == 1 else [rows(batch, *ends) for ends in _ends(row_count(batch), pieces)]


def cut_state(state: State, count: int, pieces: int) -> list[State]:
    """Split the model's state for a batch into a state for each piece, by rows as `cut` splits the batch.

    state: the state that the model carries from batch to batch.
    count: number of rows.
    pieces: number of pieces.
    """
    if pieces == 1:
        return [state]
    return [select(state, torch.arange(first, last)) for first, last in _ends(count, pieces)]


def join_states(states: Sequence[State]) -> State:
    """Join the model's states for the pieces of a batch; a tensor that several layers share stays shared.

    states: the states, in order.
    """
    if len(states) == 1:
        return states[0]
    further = [iter(leaves(state)) for state in states[1:]]
    by_leaf: dict[int, Tensor] = {}

    def join(name: str, leaf: Tensor) -> Tensor:
        parts = [leaf, *(next(other)[1] for other in further)]
        return by_leaf.setdefault(id(leaf), torch.cat(parts))

    return map_state(join, states[0])


def across_rows_reasons(model: nn.Module) -> list[str]:
    """Return the reasons why parts of a model compute other results for a piece of a batch.

    The result of such a part for a row depends on the other rows of the batch. The part declares its reason in the text
    `across_rows`.

    model: the model.
    """
    reasons = (getattr(part, "across_rows", "") for part in model.modules())
    return list(dict.fromkeys(reason for reason in reasons if reason))


def warn_across_rows(model: nn.Module, accumulate: int, processes: int) -> None:
    """Warn if batches are split although a part of the model compares the rows of a batch.

    model: the model.
    accumulate: number of micro-batches of each process.
    processes: number of processes.
    """
    if accumulate * processes == 1:
        return
    names = {"accumulate": accumulate, "processes": processes}
    division = " and ".join(f"{name}={count}" for name, count in names.items() if count > 1)
    for reason in across_rows_reasons(model):
        warn(f"{division} changes what this {display_name(model)} learns: {reason}")


def detach_loss(loss: Loss) -> Loss:
    """Return a loss whose tensors are detached from the autograd graph.

    loss: the loss.
    """
    parts = {name: value.detach() for name, value in loss.parts.items()}
    state = None if loss.state is None else detach(loss.state)
    return loss._replace(total=loss.total.detach(), parts=parts, state=state)


def combine_losses(losses: Sequence[Loss]) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Combine the losses of the pieces of a batch into (parts, stats).

    Each part of the loss, and the total, is the mean over all targets of the batch. Stats, which are counts that parts
    of the model report, are summed.

    losses: the losses.
    """
    counts = torch.tensor([float(loss.count) for loss in losses], dtype=torch.float64)
    shares = [1.0] if len(losses) == 1 else (counts / counts.sum().clamp_min(1)).tolist()
    parts: dict[str, float] = {}
    stats: dict[str, Tensor] = {}
    for share, loss in zip(shares, losses, strict=True):
        named = {**loss.parts, "total": loss.total}
        values = torch.stack([value.double() for value in named.values()]).tolist()  # one device synchronisation
        for name, value in zip(named, values, strict=True):
            parts[name] = parts.get(name, 0.0) + share * value
        stats = add_stats(stats, loss.stats)
    return parts, stats


def _ends(count: int, pieces: int) -> list[tuple[int, int]]:
    ends = [count * n // pieces for n in range(pieces + 1)]
    return [(first, last) for first, last in pairwise(ends) if last > first]


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Yield all tensors in a tree."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, tuple | list | dict):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _tensors(part)
