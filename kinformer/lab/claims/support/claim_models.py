"""Helpers for models in claims: seeded construction, evaluation, and recorded attention inputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.model import Model
from kinformer.core.pattern import Pattern
from kinformer.nn.attention import Attention


class HeadInputs(NamedTuple):
    """Queries, keys and values of an attention layer, by head.

    q: queries.
    k: keys.
    v: values.
    """

    q: Float[Tensor, "B H T K"]
    k: Float[Tensor, "B H T K"]
    v: Float[Tensor, "B H T V"]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's generator inside a `with` block, and restore its state afterwards.

    seed: seed of the block.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def mean_metric(model: Any, rows: Any, metric: str) -> float:
    """Return the mean of a model's metric, such as accuracy, over all scored positions of a batch.

    model: model to evaluate.
    rows: batch.
    metric: name of the metric.
    """
    total, count = model.judge(rows).totals[metric]
    return float(total / count)


@torch.no_grad()
def heads(model: Model, tokens: Int[Tensor, "B T"]) -> list[HeadInputs]:
    """Return the queries, keys and values of every attention layer of a model, the lowest layer first.

    They come from one forward pass in eval mode.

    model: model with attention layers.
    tokens: batch of tokens for the forward pass.
    """
    layers: list[HeadInputs] = []

    def note(_: nn.Module, inputs: Any) -> None:
        queries, keys = inputs[:2]
        layers.append(HeadInputs(queries.q, keys.k, keys.v))

    hooks = [
        module.mechanism.register_forward_pre_hook(note) for module in model.modules() if isinstance(module, Attention)
    ]
    try:
        model.eval()
        model.logits(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return layers


def patterns(model: nn.Module) -> list[Pattern]:
    """Return the attention patterns of all attention layers of a model, the lowest layer first.

    model: model with attention layers.
    """
    return [cast(Pattern, part.mechanism.pattern) for part in model.modules() if isinstance(part, Attention)]
