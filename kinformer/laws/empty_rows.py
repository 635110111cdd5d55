"""Law 11, empty rows: a query with no keys reads 0, and nothing is NaN or infinite, in gradients either."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern, narrowed
from kinformer.core.scores import allowed
from kinformer.laws.batch import SOURCE, Batch, positions
from kinformer.laws.broken import Broken
from kinformer.laws.subject import Subject
from kinformer.patterns.band import Band

LENGTH = 7


def check(subject: Subject) -> None:
    """A row that is all padding; a source that is; every query kept from itself, so that the first has nothing."""
    module = subject.build()
    for training in subject.modes(module):
        for what, batch in _cases(subject):
            states = [] if subject.no_state(module) else [subject.start(module, 3, LENGTH)]
            for state in states if training else [None, *states]:
                _finite(subject, module, batch, state, what)


def _cases(subject: Subject) -> Iterator[tuple[str, Batch]]:
    lengths = [LENGTH, 0, LENGTH - 2]
    batch = subject.batch(lengths, [0, 0, 2], LENGTH)
    yield "a row is all padding", batch
    yield "every query is kept from itself", batch.narrowed(~Band(0))
    if subject.source:
        pos = positions([SOURCE, 0, 3], [0, 0, 1], SOURCE)
        empty = dataclasses.replace(subject.batch([LENGTH] * 3), source=subject.sourced(pos, 0), source_pos=pos)
        yield "a source is all padding", empty


def _finite(subject: Subject, module: Any, batch: Batch, state: Any, what: str) -> None:
    with _reads_of_nothing(module, what):
        try:
            out, leaf = subject.traced(module, batch, state)
        except ValueError as error:
            if "ctx.only" in str(error):
                return  # a mechanism that cannot honour a batch's limits says so
            raise
    _whole(out.y, "values", what)
    for name, value in out.aux.items():
        _whole(value, f"aux {name!r}", what)
    parameters = dict(module.named_parameters())
    loss = out.y.square().sum() + sum(value.sum() for value in out.aux.values())
    gradients = torch.autograd.grad(loss, [leaf, *parameters.values()], allow_unused=True)
    for name, gradient in zip(("x", *parameters), gradients, strict=True):
        if gradient is not None:
            _whole(gradient, f"the gradient of {name}", what)


def _whole(value: Tensor, name: str, what: str) -> None:
    if not value.isfinite().all():
        count = int((~value.isfinite()).sum())
        raise Broken(f"where {what}, {count} of {value.numel()} numbers of {name} are NaN or infinite")


@contextmanager
def _reads_of_nothing(module: Any, what: str) -> Iterator[None]:
    """While this lasts, every mechanism is watched: where a query has no key at all, it must read y = 0, lse = -inf."""
    hooks = [
        part.register_forward_hook(lambda part, inputs, out: _zero(part, inputs, out, what))
        for part in module.modules()
        if isinstance(part, Mechanism)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _zero(part: nn.Module, inputs: tuple, out: Out, what: str) -> None:
    q, _, _, k_pos, _, ctx, _ = inputs
    nothing = _keyless(part, q.shape[1], k_pos, ctx)
    if not nothing.any():
        return
    y, lse = out.y.y.detach(), out.y.lse
    name = type(part).__name__
    if (y.abs().sum(-1) * nothing).any() or y.isnan().any():
        raise Broken(
            f"{name}: where {what}, a query without keys reads {float(y[nothing].abs().max()):.3g} instead of 0"
        )
    if lse is not None and (lse[nothing] != -torch.inf).any():
        most = float(lse.detach()[nothing].max())
        raise Broken(f"{name}: where {what}, a query without keys has lse {most:.3g} instead of -inf")


def _keyless(part: nn.Module, heads: int, k_pos: Tensor, ctx: Context) -> Tensor:
    """Queries [B H T] without a key: no key in the row, or none that the mechanism's pattern allows."""
    none = ~(k_pos >= 0).any(1)[:, None, None].expand(-1, heads, ctx.pos.shape[1])
    pattern = getattr(part, "pattern", None)
    if not isinstance(pattern, Pattern) or ctx.also is not None or isinstance(getattr(part, "rows", None), Pattern):
        return none  # what may be read beyond the pattern is not known here
    return none | ~allowed(narrowed(pattern, ctx.only, ctx.also), heads, ctx.pos[:, None], k_pos[:, None]).any(-1)
