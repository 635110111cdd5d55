"""Law 0, runs: a plain call gives an Out of the right shape with finite numbers. What fails here needs no other law."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from kinformer.core.layer import Layer, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.position import Position
from kinformer.core.read import Read
from kinformer.laws.broken import Broken
from kinformer.laws.compare import smallest
from kinformer.laws.subject import Subject

LENGTH = 5


def check(subject: Subject) -> None:
    """Rows padded left and right, in eval mode and without a state; every layer, mechanism and position is watched."""
    smallest(_call, LENGTH, subject, subject.build())


def _call(length: int, subject: Subject, module: Any) -> None:
    batch = subject.ragged(length)
    with _watched(module):
        out = subject.call(module, batch)
    _out(out, type(module).__name__)
    if tuple(out.y.shape[:2]) != batch.size:
        raise Broken(f"{list(batch.size)} tokens in, an output of shape {list(out.y.shape)} out")
    found = out.y[batch.real]
    if not found.isfinite().all():
        wrong = int((~found.isfinite()).sum())
        raise Broken(f"{wrong} of {found.numel()} numbers of its output are NaN or infinite, in rows of {length}")


@contextmanager
def _watched(module: nn.Module) -> Iterator[None]:
    """While this lasts, what a part returns is looked at before anyone uses it."""
    hooks = [part.register_forward_hook(_look) for part in module.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _look(part: nn.Module, inputs: tuple, out: Any) -> None:
    name = type(part).__name__
    if isinstance(part, Layer):
        _out(out, name)
        _shape(out.y, inputs[0].shape, name, "y, as x has")
    elif isinstance(part, Mechanism):
        _mechanism(out, inputs[0], inputs[2], name)
    elif isinstance(part, Position):
        _shape(out, (*inputs[0].shape, out.shape[-1]), name, "its vectors")


def _mechanism(out: Any, q: Tensor, v: Tensor, name: str) -> None:
    _out(out, name)
    if not isinstance(out.y, Read):
        raise Broken(f"{name}.forward returns an Out of a {type(out.y).__name__}; return Out(Read(y, lse), state)")
    _shape(out.y.y, (*q.shape[:3], v.shape[-1]), name, "y")
    if out.y.lse is not None:
        _shape(out.y.lse, q.shape[:3], name, "lse")


def _out(out: Any, name: str) -> None:
    if not isinstance(out, Out):
        raise Broken(f"{name}.forward returns a {type(out).__name__}; return Out(y, state)")


def _shape(found: Tensor, wanted: tuple[int, ...], name: str, what: str) -> None:
    if tuple(found.shape) != tuple(wanted):
        raise Broken(f"{name}.forward gives {list(found.shape)}; it must give {list(wanted)} for {what}")
