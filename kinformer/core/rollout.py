"""Experience: what an agent was told, what it did and what came of it, as a batch to learn from."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.layer import State


class Observations(NamedTuple):
    """What an agent is told step by step.

    marks: 0 where there is a step, -1 at padding, which stands at the ends of a row only.
    observed: numbers of each step.
    acted: what it did at the step before: kinds [B T], or numbers [B T A]; -1, or zeros, at an episode's first step.
    earned: what that was worth.
    """

    marks: Int[Tensor, "B T"]
    observed: Float[Tensor, "B T *n"]
    acted: Int[Tensor, "B T"] | Float[Tensor, "B T A"]
    earned: Float[Tensor, "B T"]


class RolloutBatch(NamedTuple):
    """Pieces of episodes, a row each.

    observations: the steps that are learned from; the other tensors are of these.
    burn_in: steps before them, which are read first, by the weights of now and without gradients (burn-in).
    state: what the agent remembered before all of these, by the weights of then; None for episodes that begin.
    actions: what it did: kinds [B T], or numbers [B T A]; log_p: how likely it held that then.
    advantages: how much better than expected that did, and returns: what is to be expected.
    rewards: what each action was worth; ended: whether an episode ended there; success: what it said of its success at
        its end, from 0 to 1, and -1 elsewhere.
    """

    observations: Observations
    burn_in: Observations
    state: State
    actions: Int[Tensor, "B T"] | Float[Tensor, "B T A"]
    log_p: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]
    rewards: Float[Tensor, "B T"]
    ended: Bool[Tensor, "B T"]
    success: Float[Tensor, "B T"]
