"""ScaleBuffers: what a model of episodes keeps of the data that it learned from: means, deviations and the largest."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class EpisodeScales(NamedTuple):
    """By what numbers of episodes are divided, from what to what whole episodes returned, and whether at their ends."""

    mean: Float[Tensor, " S"]
    deviation: Float[Tensor, " S"]
    returns: Float[Tensor, ""]
    actions: Float[Tensor, " A"]
    span: Float[Tensor, "2"]
    delayed: Bool[Tensor, ""]


class ScaleBuffers(nn.Module):
    """Scales as buffers, so that they are in a checkpoint; none before they are told.

    states, actions: how many numbers an observation, and an action, has; 0 actions where these are kinds.
    """

    known: Tensor
    mean: Tensor
    deviation: Tensor
    returns: Tensor
    actions: Tensor
    span: Tensor
    delayed: Tensor

    def __init__(self, states: int, actions: int):
        super().__init__()
        no, unit = torch.zeros((), dtype=torch.bool), torch.ones(())
        self.register_buffer("known", no)
        initial = EpisodeScales(
            torch.zeros(states), torch.ones(states), unit, torch.ones(actions), torch.zeros(2), no.clone()
        )
        for name, value in initial._asdict().items():
            self.register_buffer(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ScaleBuffers":
        """They move with the weights, and are not rounded with them: a mean of 1002.5 would be another in bfloat16."""
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, now in self.named_buffers():
            if now.is_floating_point() and torch.finfo(now.dtype).bits < torch.finfo(before[name].dtype).bits:
                setattr(self, name, before[name].to(now.device))
        return self

    def set_scales(self, scales: EpisodeScales) -> None:
        """Keep these, unless some are kept already, by which the weights were learned."""
        if self.known:
            return
        for name, value in scales._asdict().items():
            getattr(self, name).copy_(value)
        self.known.fill_(True)

    def normalise(self, states: Float[Tensor, "*n S"]) -> Float[Tensor, "*n S"]:
        """Observations by their mean and deviation."""
        return (states - self.mean) / self.deviation
