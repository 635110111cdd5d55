"""Layers used: the number of layers that each generated token takes in a model with exits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Out
from kinformer.nn.depth.early_exit import EarlyExit


@contextmanager
def record_layers_used(model: Any) -> Iterator[list[Float[Tensor, " B"]]]:
    """Record, within a `with` block, how many layers the last token of each row uses.

    The context manager yields a list that grows by one tensor with each call of the model. For a model without early
    exits it stays empty. The next token is predicted from the last one, so predicting it costs this number of layers.

    model: model to record.
    """
    depths: list[Float[Tensor, " B"]] = []
    body = exits_of(model)
    if body is None:
        yield depths
        return

    def note(_: nn.Module, __: Any, out: Out) -> None:
        depths.append(out.aux["exit"][:, -1])

    hook = body.register_forward_hook(note)
    try:
        yield depths
    finally:
        hook.remove()


def exits_of(model: Any) -> EarlyExit | None:
    """Return a model's `EarlyExit` (layers that tokens can leave early), or None if it has none.

    model: any model.
    """
    body = getattr(model, "exits", None)
    return body if isinstance(body, EarlyExit) else None
