"""Attention hooks: observe each attention call of a model, with its layer, inputs and executor."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from kinformer.attend import EXECUTORS
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.request import Request
from kinformer.nn.attention import Attention


@contextmanager
def reading_through(read: Callable[[str, Request, Any], AttentionOutput]) -> Iterator[None]:
    """Call `read(name, request, executor)` for each attention call while the context is entered.

    An executor is a way to compute attention, such as a fused kernel; a request holds the inputs of one call. `read`
    runs in place of the executor.

    read: receives the name of the executor, the request and the executor, and returns the attention output. It may call
        `executor.read(request)`.
    """
    before = dict(EXECUTORS)
    observed = {name: _ObservedExecutor(executor, partial(read, name)) for name, executor in before.items()}
    EXECUTORS.update(observed)  # type: ignore[arg-type]
    try:
        yield
    finally:
        EXECUTORS.update(before)


class _ObservedExecutor:
    """An executor that reads through a function; its other attributes still decide which executor reads."""

    def __init__(self, executor: Any, read: Callable[[Request, Any], AttentionOutput]):
        self.executor, self._read = executor, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def read(self, request: Request) -> AttentionOutput:
        return self._read(request, self.executor)


@contextmanager
def layers_that_read(model: nn.Module, on_read: Callable[[str, str, Request], None]) -> Iterator[None]:
    """Call `on_read(layer, executor, request)` before every attention call while the context is entered.

    model: the model to observe.
    on_read: receives the name of the `Attention` module in the model ("" for a call outside of any), the name of the
        executor (a way to compute attention), and the request (the inputs of the call).
    """
    names = [""]

    def note(name: str, request: Request, executor: Any) -> AttentionOutput:
        on_read(names[-1], name, request)
        result: AttentionOutput = executor.read(request)
        return result

    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            # prepend and always_call keep the names balanced if a layer raises
            hooks.append(module.register_forward_pre_hook(partial(_enter_layer, names, name), prepend=True))
            hooks.append(module.register_forward_hook(partial(_leave_layer, names), always_call=True))
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
