"""ScaleBuffers: the scales of the training data that a model of episodes keeps."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class EpisodeScales(NamedTuple):
    """Scales of the episodes of a data set.

    mean, deviation: mean and deviation of observations.
    returns, actions: divisors of returns and of numeric actions.
    span: smallest and largest return of an episode.
    delayed: True if rewards are paid only at the end of an episode.
    """

    mean: Float[Tensor, " S"]
    deviation: Float[Tensor, " S"]
    returns: Float[Tensor, ""]
    actions: Float[Tensor, " A"]
    span: Float[Tensor, "2"]
    delayed: Bool[Tensor, ""]


class ScaleBuffers(nn.Module):
    """Scales as buffers, so that checkpoints include them; they are unset until `set_scales`.

    states: number of values of an observation.
    actions: number of components of an action; 0 for kinds of actions.
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
        """Set the scales, unless they are set already, because the weights depend on the first ones.

        scales: scales of the training data.
        """
        if self.known:
            return
        for name, value in scales._asdict().items():
            getattr(self, name).copy_(value)
        self.known.fill_(True)

    def normalise(self, states: Float[Tensor, "*n S"]) -> Float[Tensor, "*n S"]:
        """Return observations minus their mean, over their deviation.

        states: observations.
        """
        return (states - self.mean) / self.deviation
