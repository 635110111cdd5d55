"""Acting: the interface of models that act in environments, step by step."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.layer import State
from kinformer.core.model import Model


class TimeStep(NamedTuple):
    """The input of an agent before it acts, for B environments side by side.

    observation: the observed numbers; an observation that is one of several categories is encoded one-hot.
    reward: the reward of the previous action, 0 at the start of an episode.
    begins: True if an episode starts.
    acted: the action that the environment took before; None if it is surely the action that the agent returned.
    """

    observation: Float[Tensor, "B S"]
    reward: Float[Tensor, " B"]
    begins: Bool[Tensor, " B"]
    acted: Tensor | None = None


def check_finite_outputs(outputs: Tensor) -> Tensor:
    """Return a model's outputs for actions if they are finite.

    Without this check, the choice of an action (argmax or sampling) would turn NaN into some action.

    outputs: the scores of actions, or actions as numbers.

    Errors: ValueError if an output is not finite.
    """
    if not bool(outputs.isfinite().all()):
        raise ValueError(
            "a model output for an action is NaN or infinite; the weights are damaged, or the observations too large"
        )
    return outputs


class Actor(ABC):
    """Base class of agents, which act in several environments at once.

    A subclass writes `start` and `act`. The state is the agent's memory: `act` gets it and returns the next one. If an
    episode begins in an environment (`TimeStep.begins`), the agent forgets that environment's past, whatever the state
    holds.
    """

    @abstractmethod
    def start(self, rows: int) -> State:
        """Return the agent's state before the first step of `rows` environments, with batch-first tensors."""

    @abstractmethod
    def act(self, step: TimeStep, state: State) -> tuple[Tensor, State]:
        """Return one action for each environment, and the agent's next state.

        Actions are integers [B], or numbers [B A] in the environment's own units.
        """


class Player(Model):
    """Base class of models that act in environments; `kinformer play` requires it.

    A subclass writes `actor`.

    states: the number of values in an observation.
    actions: the number of possible actions if they are `discrete`, otherwise the number of values in an action.
    discrete: True if an action is one of a finite set, False if it consists of numbers.
    """

    states: int
    actions: int
    discrete: bool

    @abstractmethod
    def actor(self, returns: Float[Tensor, " B"] | None = None, *, seed: int = 0) -> Actor:
        """Return an agent that acts by this model, in eval mode and without gradients.

        returns: for each environment the sum of rewards to reach, if the model takes one.
        seed: the seed of random choices.

        Errors: ValueError if returns are given to a model that takes none, or missing for a model that needs them.
        """
