"""ResumableStream: batches that need more than a seed and a step, such as the model's past actions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor


class StepError(RuntimeError):
    """A batch on which the model cannot be trained; the model is unchanged by it.

    why: the message.
    advice: a remedy for the user.
    """

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(why)
        self.advice = advice


class ResumableStream(ABC):
    """A stream with tensors that a checkpoint must hold, so that a resumed training gets the same batches."""

    @abstractmethod
    def at(self, step: int) -> Any:
        """Return the batch of a step; a repeated call before a later step returns the same batch."""

    @property
    @abstractmethod
    def validation_batches(self) -> tuple[Any, ...]:
        """Current validation batches."""

    @abstractmethod
    def saved_tensors(self) -> dict[str, Tensor]:
        """Return by name the tensors that determine the next batches."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from the tensors that `saved_tensors` returned."""

    def moving(self) -> AbstractContextManager[None]:
        """Return the context in which a training calls `after_step`.

        On exit the model is ready for its next batch.
        """
        return nullcontext()
