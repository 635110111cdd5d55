"""Head values: numbers that the heads of a trained model have learned, such as attention spans."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from kinformer.core.bias import Bias, Plus
from kinformer.core.heads import HeadValues
from kinformer.core.mechanism import Mechanism
from kinformer.core.request import Request
from kinformer.lab.train.attention_hooks import layers_that_read
from kinformer.nn.attention import Attention


@dataclass
class LayerValues:
    """One kind of learned number, such as a span, for every head of every layer that learns it.

    unit: unit of the numbers.
    layers: the values of the heads, by the name of the attention layer in the model.
    numbers: index of each of these layers among all attention layers of the model, counted from 1.
    """

    unit: str
    layers: dict[str, list[float]] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)

    def add(self, layer: str, number: int, values: list[float]) -> None:
        self.layers[layer] = values
        self.numbers.append(number)


def has_head_values(model: nn.Module) -> bool:
    """Return True if heads of this model learn numbers that `head_values_by_layer` collects.

    model: the model.
    """
    return any(_has_own_values(part) or _has_request_values(part) for part in model.modules())


@contextmanager
def head_values_by_layer(model: nn.Module) -> Iterator[dict[str, LayerValues]]:
    """Collect the numbers that heads have learned, by name such as "span"; filled when the context ends.

    Run the model within the context if a number depends on the token: the result is its mean over all queries, without
    padding.

    model: the model.
    """
    by_name: dict[str, LayerValues] = {}
    sums: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}
    units: dict[str, str] = {}

    def add_values(layer: str, executor: str, request: Request) -> None:
        if request.bias is None or not _has_request_values(request.bias):
            return
        with torch.no_grad():
            for name, value in request.bias.head_values(request).items():
                total, count = _total(value, request.queries.pos)
                before = sums.get((name, layer), (0.0, 0.0))
                sums[name, layer] = (before[0] + total, before[1] + count)
                units[name] = value.unit

    if not has_head_values(model):
        yield by_name
        return
    with layers_that_read(model, add_values):
        yield by_name
    attention = ((layer, part) for layer, part in model.named_modules() if isinstance(part, Attention))
    for number, (layer, part) in enumerate(attention, 1):
        for name, value in _learned_values(part).items():
            by_name.setdefault(name, LayerValues(value.unit)).add(layer, number, value.values[0, :, 0].tolist())
        for name in [name for name, place in sums if place == layer]:
            total, count = sums[name, layer]
            by_name.setdefault(name, LayerValues(units[name])).add(layer, number, (total / count.clamp_min(1)).tolist())


def _total(value: HeadValues, pos: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of each head over real queries, and the number of these queries."""
    heads = max(value.values.shape[1], pos.shape[1])
    real = (pos >= 0).expand(-1, heads, -1)  # [B H T]
    values = value.values.detach().double().expand(real.shape)
    return torch.where(real, values, 0.0).sum((0, 2)), real.sum((0, 2))


def _learned_values(layer: Attention) -> dict[str, HeadValues]:
    """Return the learned values of a layer's mechanisms."""
    by_name: dict[str, HeadValues] = {}
    with torch.no_grad():
        for part in layer.mechanism.modules():
            if isinstance(part, Mechanism):
                by_name |= part.head_values()
    return by_name


def _has_own_values(part: nn.Module) -> bool:
    return isinstance(part, Mechanism) and bool(part.head_values())


def _has_request_values(part: nn.Module) -> bool:
    if isinstance(part, Plus):
        return any(_has_request_values(bias) for bias in part.biases)
    return isinstance(part, Bias) and type(part).head_values is not Bias.head_values
