"""Models of claims: built under a seed, judged, and their attention layers recorded."""

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
    """The queries, keys and values of a layer."""

    q: Float[Tensor, "B H T K"]
    k: Float[Tensor, "B H T K"]
    v: Float[Tensor, "B H T V"]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a generator with this seed inside, and leave the state of PyTorch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def mean_metric(model: Any, rows: Any, metric: str) -> float:
    """The mean of a model's metric over all that it scores in a batch."""
    total, count = model.judge(rows).totals[metric]
    return float(total / count)


@torch.no_grad()
def heads(model: Model, tokens: Int[Tensor, "B T"]) -> list[HeadInputs]:
    """Those of every attention layer in order, from a reading in eval mode."""
    layers: list[HeadInputs] = []

    def note(_: nn.Module, inputs: Any) -> None:
        queries, keys = inputs[:2]
        layers.append(HeadInputs(queries.q, keys.k, keys.v))

    hooks = [
        module.mechanism.register_forward_pre_hook(note) for module in model.modules() if isinstance(module, Attention)
    ]
    try:
        model.eval()
        model.logits(tokens)  # type: ignore[operator]
    finally:
        for hook in hooks:
            hook.remove()
    return layers


def patterns(model: nn.Module) -> list[Pattern]:
    """The patterns of all attention layers, in order."""
    return [cast(Pattern, part.mechanism.pattern) for part in model.modules() if isinstance(part, Attention)]
