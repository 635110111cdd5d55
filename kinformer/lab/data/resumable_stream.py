"""ResumableStream: batches that follow from more than a seed and a step, such as from what a model did so far."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor


class StepError(RuntimeError):
    """A batch that cannot be learned from, and what to do about it; nothing of it is left in the model."""

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(why)
        self.advice = advice


class ResumableStream(ABC):
    """A stream that must be kept beside the weights for a training to go on to the same ones."""

    @abstractmethod
    def at(self, step: int) -> Any:
        """The batch of a step; the same again where it is asked for again before a later one."""

    @property
    @abstractmethod
    def validation_batches(self) -> tuple[Any, ...]:
        """The batches that are measured now."""

    @abstractmethod
    def saved_tensors(self) -> dict[str, Tensor]:
        """What its next batches follow from, by name."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from there."""

    def moving(self) -> AbstractContextManager[None]:
        """The context in which a training calls `after_step`; on exit the model is ready for its next batch."""
        return nullcontext()
