"""Law empty_rows: a query without keys gives 0, and no value or gradient is NaN or infinite."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern, narrow_pattern, pair_mask
from kinformer.laws.support.dependences import trainable
from kinformer.laws.support.findings import Broken, findings
from kinformer.laws.support.input_batch import InputBatch, positions
from kinformer.laws.support.subject import ROWS, SOURCE, Subject
from kinformer.nn.patterns.band import Band

SAYS = "a query without keys gives 0, and no value or gradient is NaN or infinite"
OVER = "layer"
LENGTH = 7


def judge(subject: Subject) -> Iterator[str]:
    """Call a layer with queries that have no key to read, and yield each wrong or infinite result.

    subject: a layer with the part to test.

    There are three cases: a row that is all padding, a source that is all padding, and queries that may not read their
    own position. In the last case, the first query of a causal row has no key. The output of attention for such a
    query must be 0, and its log-sum-exp -inf.
    """
    module = subject.build()
    for _ in subject.modes(module):
        for case, batch in _cases(subject):
            for state in subject.states(module, ROWS, LENGTH):
                yield from findings(_finite, subject, module, batch, state, case)


def _cases(subject: Subject) -> Iterator[tuple[str, InputBatch]]:
    lengths = [LENGTH, 0, LENGTH - 2]
    batch = subject.batch(lengths, [0, 0, 2], LENGTH)
    yield "all tokens of a row are padding", batch
    yield "no query may read its own position", batch.narrow(~Band(0))
    if subject.source == "other":
        pos = positions([SOURCE, 0, 3], [0, 0, 1], SOURCE)
        empty = dataclasses.replace(subject.batch([LENGTH] * 3), source=subject.fill_rows(pos, 0), source_pos=pos)
        yield "all tokens of a source are padding", empty


def _finite(subject: Subject, module: Any, batch: InputBatch, state: Any, case: str) -> None:
    with _reads_of_nothing(module, case):
        try:
            out, leaf = subject.call_traced(module, batch, state)
        except ValueError as error:
            if "ctx.only" in str(error):
                return  # a mechanism may refuse the limits of a batch
            raise
    _check_finite_values(out.y, "values", case)
    for name, value in out.aux.items():
        _check_finite_values(value, f"aux {name!r}", case)
    parameters = trainable(module)
    loss = out.y.square().sum() + sum(value.sum() for value in out.aux.values())
    gradients = torch.autograd.grad(loss, [leaf, *parameters.values()], allow_unused=True)
    for name, gradient in zip(("x", *parameters), gradients, strict=True):
        if gradient is not None:
            _check_finite_values(gradient, f"the gradient of {name}", case)


def _check_finite_values(value: Tensor, name: str, case: str) -> None:
    if not value.isfinite().all():
        count = int((~value.isfinite()).sum())
        raise Broken(f"if {case}, {count} of {value.numel()} numbers of {name} are NaN or infinite")


@contextmanager
def _reads_of_nothing(module: Any, case: str) -> Iterator[None]:
    """Check in every mechanism that a query without keys gets y = 0 and lse = -inf."""
    hooks = [
        part.register_forward_hook(lambda part, inputs, out: _zero(part, inputs, out, case))
        for part in module.modules()
        if isinstance(part, Mechanism)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _zero(part: nn.Module, inputs: tuple, out: Out, case: str) -> None:
    queries, keys, state, ctx = inputs
    if keys is None or ctx.remember:
        return
    nothing = _keyless(part, queries, keys, ctx)
    if not nothing.any():
        return
    y, lse = out.y.y.detach(), out.y.lse
    if y.shape[1] != nothing.shape[1]:  # talking heads mix all heads, so a query is empty only if all heads are
        nothing = nothing.all(1, keepdim=True).expand(y.shape[:3])
    name = type(part).__name__
    if not bool((y.abs().sum(-1)[nothing] <= 1e-12).all()) or y.isnan().any():
        raise Broken(f"{name}: if {case}, a query without keys gives {float(y[nothing].abs().max()):.3g} instead of 0")
    if lse is not None and (lse[nothing] != -torch.inf).any():
        max_lse = float(lse.detach()[nothing].max())
        raise Broken(f"{name}: if {case}, a query without keys has lse {max_lse:.3g} instead of -inf")


def _keyless(part: nn.Module, queries: Queries, keys: Keys, ctx: Context) -> Tensor:
    """Return the queries [B H T] without a key in the row or without an allowed key."""
    heads = queries.q.shape[1]
    keyless = ~(keys.pos >= 0).any(-1)[..., None].expand(-1, heads, queries.q.shape[2])
    patterns = [value for value in vars(part).values() if isinstance(value, Pattern)]
    if len(patterns) != 1 or ctx.also is not None:
        return keyless  # the pairs beyond one pattern are unknown here
    pattern = narrow_pattern(patterns[0], ctx.only, ctx.also) if keys.own else patterns[0]
    return keyless | ~pair_mask(pattern, queries.pos, keys.pos, range(queries.head, queries.head + heads)).any(
        -1
    ).expand_as(keyless)
