"""Records the queries, keys, values and patterns of the attention layers of a trained model."""

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.model import Model
from kinformer.core.pattern import Pattern
from kinformer.nn.attention import Attention


class Heads(NamedTuple):
    """The queries, keys and values of a layer."""

    q: Float[Tensor, "B H T K"]
    k: Float[Tensor, "B H T K"]
    v: Float[Tensor, "B H T V"]


@torch.no_grad()
def heads(model: Model, tokens: Int[Tensor, "B T"]) -> list[Heads]:
    """Those of every attention layer in order, from a reading in eval mode."""
    found: list[Heads] = []

    def note(_: nn.Module, given: Any) -> None:
        queries, keys = given[:2]
        found.append(Heads(queries.q, keys.k, keys.v))

    hooks = [one.mechanism.register_forward_pre_hook(note) for one in model.modules() if isinstance(one, Attention)]
    try:
        model.eval()
        model.logits(tokens)  # type: ignore[operator]
    finally:
        for hook in hooks:
            hook.remove()
    return found


def patterns(model: nn.Module) -> list[Pattern]:
    """The patterns of all attention layers, in order."""
    return [cast(Pattern, part.mechanism.pattern) for part in model.modules() if isinstance(part, Attention)]
