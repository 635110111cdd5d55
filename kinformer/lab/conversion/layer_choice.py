"""Choice of the layers that a conversion leaves as they are, by measurement."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.convert.support.changed_model import attention_layers
from kinformer.core.eval_mode import evaluating


def losses_by_layer(
    source: Any, converted: Any, rows: Int[Tensor, "N T"], on_progress: Callable[[float], None]
) -> list[float]:
    """Return the loss of the source with one layer converted, for each attention layer from the bottom.

    A layer with a large loss matters most, so it is the first to keep.

    source: the trained model. Its layers are replaced one after the other, and it is as before in the end.
    converted: the model with all layers converted, and their new parts trained.
    rows: rows of tokens.
    on_progress: called with the finished fraction.
    """
    losses = list[float]()
    layers = list(zip(attention_layers(source), attention_layers(converted), strict=True))
    for number, ((name, layer), (_, other)) in enumerate(layers, 1):
        try:  # in place, because a copy would need the memory of a further model
            source.set_submodule(name, other)
            losses.append(mean_loss(source, rows))
        finally:
            source.set_submodule(name, layer)
        on_progress(number / len(layers))
    return losses


@torch.inference_mode()
def mean_loss(model: Any, rows: Int[Tensor, "N T"]) -> float:
    """Return the value of the model's metric on rows of tokens, as a mean over the rows' predictions.

    model: the model.
    rows: rows of tokens.
    """
    total, count = 0.0, 0
    with evaluating(model):
        for row in rows:
            value, number = next(iter(model.judge(row[None]).totals.values()))
            total, count = total + float(value), count + int(number)
    return total / max(count, 1)


def layers_to_keep(losses: list[float], count: int) -> tuple[int, ...]:
    """Return the numbers, from 1 at the bottom, of the `count` layers with the largest losses.

    losses: losses of `losses_by_layer`.
    count: number of layers to keep.

    Errors: ValueError for more layers than there are.
    """
    if not 0 <= count <= len(losses):
        raise ValueError(
            f"wrong keep: got {count} layers, expected at most {len(losses)}, the layers of the model. Give fewer"
        )
    order = sorted(range(len(losses)), key=lambda number: -losses[number])
    return tuple(sorted(number + 1 for number in order[:count]))
