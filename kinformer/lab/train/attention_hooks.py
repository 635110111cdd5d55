"""Reads of a model, seen as they are made: by which layer, of which request, by which executor."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import nn

from kinformer.attend import EXECUTORS
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.request import Request
from kinformer.nn.attention import Attention


@contextmanager
def reading_through(read: Callable[[str, Request, Any], AttentionOutput]) -> Iterator[None]:
    """While it is entered, each executor is called through `read(name, request, executor)`."""
    before = dict(EXECUTORS)

    def wrap_executor(name: str, executor: Any) -> SimpleNamespace:
        return SimpleNamespace(cost=executor.cost, read=lambda request: read(name, request, executor))

    EXECUTORS.update({name: wrap_executor(name, executor) for name, executor in before.items()})  # type: ignore[misc]
    try:
        yield
    finally:
        EXECUTORS.update(before)


@contextmanager
def layers_that_read(model: nn.Module, on_read: Callable[[str, str, Request], None]) -> Iterator[None]:
    """While it is entered, `on_read(layer, executor, request)` is called before every read.

    layer: the name of the `Attention` in the model; "" for a read outside of any. executor: its name.
    """
    names = [""]

    def note(name: str, request: Request, executor: Any) -> AttentionOutput:
        on_read(names[-1], name, request)
        result: AttentionOutput = executor.read(request)
        return result

    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            hooks.append(module.register_forward_pre_hook(partial(_enter_layer, names, name)))
            hooks.append(module.register_forward_hook(partial(_leave_layer, names)))
    try:
        with reading_through(note):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _enter_layer(names: list[str], name: str, *_: Any) -> None:
    names.append(name)


def _leave_layer(names: list[str], *_: Any) -> None:
    names.pop()
