"""Attention transfer: training linear attention to give the outputs of softmax attention."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.autocast import at_least_float32
from kinformer.core.eval_mode import evaluating
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.model import Model
from kinformer.core.patterns.causal import Causal
from kinformer.nn.attention import Attention
from kinformer.nn.maps.hedgehog import Hedgehog
from kinformer.nn.mechanisms.delayed import Delayed
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.softmax import Softmax

STEPS = 100  # training steps of a layer, one row each
RATE = 0.01  # highest learning rate
WARMUP = 0.1  # part of the steps in which the learning rate rises
CACHE = 1 << 30  # bytes of layer inputs that are kept at a time


class _LastLayerReached(Exception):
    """The end of a reading whose further results are not needed."""


class TeacherRow(NamedTuple):
    """A row of tokens as one layer reads it: all that training its far part needs.

    queries, keys: queries and keys of the layer.
    near: exact output over the window and the sinks.
    target: output of the source's layer, after its aggregation.
    ctx: context of the row.
    """

    queries: Queries
    keys: Keys
    near: AttentionOutput
    target: Float[Tensor, "1 T D"]
    ctx: Context


def transfer_attention(
    source: Model,
    converted: Model,
    names: Sequence[str],
    rows: Int[Tensor, "N T"],
    on_progress: Callable[[float], None],
) -> None:
    """Train the feature map of each converted layer to give the outputs of the source's layer.

    The layers learn one by one. Each gets the inputs that it has in the source, so one reading of the source serves
    many layers. The loss is the mean squared difference of the layer's outputs, after the aggregation of heads, as a
    fraction of their mean square. Only the feature maps change.

    source: the trained model, whose layers `names` are softmax attention.
    converted: the converted model, with the weights of the source.
    names: names of the converted layers.
    rows: rows of tokens without padding, longer than window and sinks.
    on_progress: called with the finished fraction.
    """
    if (rows < 0).any():
        raise ValueError("attention transfer got rows with padding (-1), expected full rows. Leave out short rows")
    parameter = next(source.parameters())
    first = source.get_submodule(names[0])
    bytes_of_layer = rows.numel() * cast(Attention, first).d * parameter.element_size()
    together = max(1, CACHE // bytes_of_layer)
    for begin in range(0, len(names), together):
        chosen = names[begin : begin + together]
        inputs = layer_inputs(source, chosen, rows)
        for number, name in enumerate(chosen, begin):
            layer = cast(Attention, converted.get_submodule(name))
            _train(layer, inputs.pop(name), number)
            on_progress((number + 1) / len(names))


def layer_inputs(
    model: Model, names: Sequence[str], rows: Int[Tensor, "N T"]
) -> dict[str, list[Float[Tensor, "1 L D"]]]:
    """Return the input of each row at each layer, by the layer's name, perhaps without the last token.

    model: the model.
    names: names of the layers.
    rows: rows of tokens.
    """
    inputs: dict[str, list[Tensor]] = {name: [] for name in names}

    def keep(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
            inputs[name].append(arguments[0].detach().clone())
            if name == names[-1]:
                raise _LastLayerReached  # the layers above and a large head would double the time

        return hook

    hooks = [model.get_submodule(name).register_forward_pre_hook(keep(name)) for name in names]
    try:
        with evaluating(model):
            for row in rows:
                with contextlib.suppress(_LastLayerReached):
                    model.judge(row[None])
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


def _train(layer: Attention, inputs: list[Float[Tensor, "1 L D"]], seed: int) -> None:
    """Train the feature map of one layer, in float32 or better."""
    narrow, layer = layer, copy.deepcopy(layer)
    layer.to(at_least_float32(inputs[0]).dtype)
    mechanism = cast(Merged, layer.mechanism)
    far = cast(Delayed, mechanism.parts[1])
    map = cast(Hedgehog, far.linear.map)
    with evaluating(layer):
        teacher = [_teacher_row(layer, at_least_float32(x)) for x in inputs]
        _set_level(map, far, mechanism.parts[0], teacher[0])
    scale = sum(row.target.square().mean() for row in teacher) / len(teacher)
    parameters = list(map.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, _rate_factor)
    draw = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        for row in _random_order(teacher, draw):
            read = merge(row.near, far(row.queries, row.keys, None, row.ctx).y)
            loss = (layer.aggregation(read.y, row.ctx.pos) - row.target).square().mean() / scale
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            optimiser.step()
            schedule.step()
    trained = map.state_dict()
    cast(Any, narrow.mechanism).parts[1].linear.map.load_state_dict(trained)  # casts to the dtype of the model


def _rate_factor(step: int) -> float:
    """Return the factor of the learning rate: a linear rise, and then a fall to 0 along a cosine."""
    done = (step + 1) / STEPS
    return done / WARMUP if done < WARMUP else 0.5 + 0.5 * math.cos(math.pi * (done - WARMUP) / (1 - WARMUP))


def _random_order(teacher: list[TeacherRow], draw: torch.Generator) -> Iterator[TeacherRow]:
    """Yield a row for each step: all rows in random order, and then again."""
    for step in range(STEPS):
        if step % len(teacher) == 0:
            order = torch.randperm(len(teacher), generator=draw).tolist()
        yield teacher[order[step % len(teacher)]]


def _teacher_row(layer: Attention, x: Float[Tensor, "1 T D"]) -> TeacherRow:
    """Read a row by exact attention, in the layer that is to be trained."""
    near = cast(Softmax, cast(Merged, layer.mechanism).parts[0])
    ctx = Context.of_sequence(x)
    queries, keys = layer.projection.queries_and_keys(x, ctx.pos)
    queries, keys = queries._replace(pos=ctx.by_head), keys._replace(pos=ctx.by_head)
    whole = Softmax(Causal(), scale=near.scale, lse=False)(queries, keys, None, ctx).y
    read = near(queries, keys, None, ctx).y
    return TeacherRow(queries, keys, read, layer.aggregation(whole.y, ctx.pos), ctx)


def _set_level(map: Hedgehog, far: Delayed, near: nn.Module, row: TeacherRow) -> None:
    """Set the level of each head so that the far sums have on average the logarithm of the exact ones."""
    scale = cast(Softmax, near).scale
    exact = Softmax(Causal(), scale=scale)(row.queries, row.keys, None, row.ctx).y.lse
    assert exact is not None and row.near.lse is not None
    fraction = -torch.expm1(row.near.lse.double() - exact.double())  # of the weights that is far
    lse = far(row.queries, row.keys, None, row.ctx).y.lse
    assert lse is not None
    some = (fraction > 1e-6) & lse.isfinite()
    gap = torch.where(some, exact + fraction.clamp_min(1e-6).log() - lse, 0.0).sum(2) / some.sum(2).clamp_min(1)
    map.level.add_(gap.mean(0).to(map.level.dtype))
