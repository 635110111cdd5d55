"""Acting: the interface of models that act in environments, step by step."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.layer import State
from kinformer.core.model import Model


class TimeStep(NamedTuple):
    """The input of an actor before an action, for a row of environments.

    observation: numbers; a kind is encoded one-hot.
    reward: the reward of the action before, 0 at the start of an episode.
    begins: True if an episode starts.
    acted: the action before, if it may differ from the actor's own; None otherwise.
    """

    observation: Float[Tensor, "B S"]
    reward: Float[Tensor, " B"]
    begins: Bool[Tensor, " B"]
    acted: Tensor | None = None


def check_finite_outputs(outputs: Tensor) -> Tensor:
    """Return a model's outputs for actions if they are finite.

    Without this check a choice would turn NaN into some action.

    outputs: the outputs.

    Errors: ValueError if an output is not finite.
    """
    if not bool(outputs.isfinite().all()):
        raise ValueError(
            "a model output for an action is NaN or infinite; the weights are damaged, or the observations too large"
        )
    return outputs


class Actor(ABC):
    """An agent in several environments at once. Its memory is a state, which is passed in and returned.

    A row forgets its past if its episode `begins`, whatever its state holds.
    """

    @abstractmethod
    def start(self, rows: int) -> State:
        """Return the state before the first observation, with batch-first tensors."""

    @abstractmethod
    def act(self, step: TimeStep, state: State) -> tuple[Tensor, State]:
        """Return actions and the next state.

        Actions are integers [B], or numbers [B A] in the environment's own units.
        """


class Player(Model):
    """A model that acts; `kinformer play` requires it.

    states: the number of values in an observation.
    actions: the number of kinds of actions if they are `discrete`, otherwise the number of values in an action.
    discrete: True if actions are kinds.
    """

    states: int
    actions: int
    discrete: bool

    @abstractmethod
    def actor(self, returns: Float[Tensor, " B"] | None = None, *, seed: int = 0) -> Actor:
        """Return an actor by this model, in eval mode and without gradients, with one target return per row.

        Random choices follow the seed.

        Errors: ValueError if returns are given to a model that takes none, or missing for a model that needs them.
        """
