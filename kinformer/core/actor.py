"""Acting: what a model that acts in environments is asked, step by step: an observation in, an action out."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.layer import State
from kinformer.core.model import Model


class TimeStep(NamedTuple):
    """What rows of environments show before an action: numbers, a kind among several as one of them being 1.

    `reward` is what the action before was worth, 0 where an episode `begins`. `acted` is what was done before, where
    that may be another action than the actor's own.
    """

    observation: Float[Tensor, "B S"]
    reward: Float[Tensor, " B"]
    begins: Bool[Tensor, " B"]
    acted: Tensor | None = None


def check_finite_outputs(outputs: Tensor) -> Tensor:
    """What was said of actions; ValueError where it is not finite, of which a choice would still make an action."""
    if not bool(outputs.isfinite().all()):
        raise ValueError("what was said of an action is not finite; the weights are spoiled, or numbers too large")
    return outputs


class Actor(ABC):
    """Acts in rows of environments that go on side by side; what it remembers is a state, passed in and handed back.

    A row whose episode `begins` forgets what was before, whatever its state holds.
    """

    @abstractmethod
    def start(self, rows: int) -> State:
        """The state before the first observation: batch-first tensors, as of any state."""

    @abstractmethod
    def act(self, step: TimeStep, state: State) -> tuple[Tensor, State]:
        """Actions, whole numbers [B] or numbers [B A] in the environment's own units, and the next state."""


class Player(Model):
    """A model that acts: what `kinformer play` needs.

    `states` is how many numbers an observation has, `actions` how many kinds of actions there are or, where these are
    not `discrete`, how many numbers an action has.
    """

    states: int
    actions: int
    discrete: bool

    @abstractmethod
    def actor(self, returns: Float[Tensor, " B"] | None = None, *, seed: int = 0) -> Actor:
        """An actor by this model, in eval mode and without gradients: it asks for these returns, one a row.

        Chance, if there is any in its choices, follows the seed. Errors: ValueError for returns that are asked of what
        knows none, and for none where it must be told.
        """
