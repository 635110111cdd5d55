"""Experience: an agent's observations and actions with their results, as a batch to learn from."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.layer import State


class Observations(NamedTuple):
    """The observations of an agent, step by step.

    marks: 0 at a step, -1 at padding, which stands at the ends of a row only.
    observed: numbers of each step.
    acted: the action of the step before: kinds [B T], or numbers [B T A]; -1, or zeros, at an episode's first step.
    earned: the reward of that action.
    """

    marks: Int[Tensor, "B T"]
    observed: Float[Tensor, "B T *n"]
    acted: Int[Tensor, "B T"] | Float[Tensor, "B T A"]
    earned: Float[Tensor, "B T"]


class RolloutBatch(NamedTuple):
    """Pieces of episodes, one per row.

    observations: the steps to learn from; the tensors from `actions` on belong to these steps.
    burn_in: the steps before them, which are read first, with the current weights and without gradients.
    state: the agent's state before all of these steps, by the weights of that time; None at the start of episodes.
    actions: the actions: kinds [B T], or numbers [B T A].
    log_p: the log-probability of each action by the weights of that time.
    advantages: the advantage of each action over the expected return.
    returns: the targets for the expected return.
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
