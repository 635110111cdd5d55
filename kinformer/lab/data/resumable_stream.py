"""ResumableStream: batches that need more than a seed and a step, such as the model's past actions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor


class StepError(RuntimeError):
    """Error: the model cannot be trained on the next batch; the model is unchanged.

    why: the message.
    advice: a remedy for the user.
    """

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(why)
        self.advice = advice


class ResumableStream(ABC):
    """Base class of a sequence of batches with tensors that a checkpoint must hold.

    A resumed training then gets the same batches. A subclass supplies all methods except `moving`.
    """

    @abstractmethod
    def at(self, step: int) -> Any:
        """Return the batch of a step; it stays the same until a later step is requested."""

    @property
    @abstractmethod
    def validation_batches(self) -> tuple[Any, ...]:
        """Validation batches at this time, such as new episodes of the model."""

    @abstractmethod
    def saved_tensors(self) -> dict[str, Tensor]:
        """Return by name the tensors that determine the next batches."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from the tensors that `saved_tensors` returned."""

    def moving(self) -> AbstractContextManager[None]:
        """Return a context manager, in which a training lets the modules of the model call `after_step`.

        `after_step` is the update of a module after a training step, such as of its buffers. On exit the model is ready
        for its next batch. The default changes nothing.
        """
        return nullcontext()
