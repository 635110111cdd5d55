"""Experience of agents: observations and actions with their results, as a batch to learn from."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.layer import State


class Observations(NamedTuple):
    """The observations of an agent, step by step.

    marks: 0 at a step, -1 at padding. Padding stands only at the ends of a row.
    observed: the observed numbers at each step.
    acted: the previous action: the number of a discrete action [B T], or A real numbers [B T A]. At an episode's first
        step it is -1, or zeros.
    earned: the reward of the previous action.
    """

    marks: Int[Tensor, "B T"]
    observed: Float[Tensor, "B T *n"]
    acted: Int[Tensor, "B T"] | Float[Tensor, "B T A"]
    earned: Float[Tensor, "B T"]


class RolloutBatch(NamedTuple):
    """Pieces of episodes that an agent played, one per row, for reinforcement learning.

    observations: the steps to learn from; the tensors from `actions` on belong to these steps.
    burn_in: the steps before them. The model computes these first, without gradients, to get a state by its current
        weights.
    state: the agent's state before the burn-in, by the weights with which it played; None at the start of episodes.
    actions: the actions: numbers of discrete actions [B T], or A real numbers each [B T A].
    log_p: the log-probability of each action by the weights with which the agent played.
    advantages: the advantage of each action over the expected return.
    returns: the targets of the model's prediction of the expected return (the value loss).
    rewards: the reward of each action.
    ended: True at the last step of an episode.
    success: the environment's report of success at the end of an episode, from 0 to 1; -1 elsewhere.
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
