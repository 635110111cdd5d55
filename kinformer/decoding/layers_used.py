"""Layers used: how many layers each token took that a model with exits writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Out
from kinformer.nn.depth.early_exit import EarlyExit


@contextmanager
def record_layers_used(model: Any) -> Iterator[list[Float[Tensor, " B"]]]:
    """A list to which each call of the model adds at how many layers the last token of each row left.

    It stays empty of a model without exits. What is written next is what the last token was read for.
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
    """The layers of a model that tokens leave; None where they do not."""
    body = getattr(model, "exits", None)
    return body if isinstance(body, EarlyExit) else None
