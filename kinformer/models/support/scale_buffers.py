"""ScaleBuffers: means and scales of training episodes that a model of episodes saves with its weights."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class EpisodeScales(NamedTuple):
    """Means and scales of the episodes of a data set, to normalise the inputs of a model.

    mean, deviation: mean and standard deviation of each value of an observation.
    returns, actions: divisors of returns and of numeric actions: their largest absolute values, or 1 for 0.
    span: smallest and largest return of an episode.
    delayed: True if an episode has its whole reward at its last step.
    """

    mean: Float[Tensor, " S"]
    deviation: Float[Tensor, " S"]
    returns: Float[Tensor, ""]
    actions: Float[Tensor, " A"]
    span: Float[Tensor, "2"]
    delayed: Bool[Tensor, ""]


class ScaleBuffers(nn.Module):
    """`EpisodeScales` as buffers of a model, so that checkpoints include them.

    Before `set_scales`, they leave numbers unchanged.

    states: number of values of an observation.
    actions: number of components of an action; 0 for discrete actions.
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
        """Move the buffers with the weights, but do not round them: a mean of 1002.5 would change in bfloat16."""
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, now in self.named_buffers():
            if now.is_floating_point() and torch.finfo(now.dtype).bits < torch.finfo(before[name].dtype).bits:
                setattr(self, name, before[name].to(now.device))
        return self

    def set_scales(self, scales: EpisodeScales) -> None:
        """Set the scales once; later calls change nothing, because the weights were trained with the first.

        scales: scales of the training data.
        """
        if self.known:
            return
        for name, value in scales._asdict().items():
            getattr(self, name).copy_(value)
        self.known.fill_(True)

    def normalise(self, states: Float[Tensor, "*n S"]) -> Float[Tensor, "*n S"]:
        """Return observations minus their mean, divided by their standard deviation.

        states: observations.
        """
        return (states - self.mean) / self.deviation
