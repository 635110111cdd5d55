"""EpochReplay: the batches of a loader by training step, the same after a resume."""

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

import torch


class EpochReplay:
    """The batches of a loader, such as a DataLoader, one for each training step.

    After the last batch it begins again. The loader draws its random numbers, such as the order of an epoch, from a
    seed and the number of the epoch. They do not change other random numbers. A loader with its own generator, or
    with data that changes, is not repeatable. Neither is one that draws random numbers of Python or NumPy.

    loader: an object that can be iterated any number of times.
    seed: the seed.

    Errors: ValueError if the loader has no batch.
    """

    def __init__(self, loader: Iterable[Any], seed: int) -> None:
        self.loader, self.seed = loader, seed
        self._step, self._epoch, self._batch = -1, -1, None
        self._batches: Iterator[Any] = iter(())
        self._random = torch.get_rng_state()

    def __call__(self, step: int) -> Any:
        """Return the batch of a step; a later step is the fastest to reach."""
        if step < self._step:
            self._step, self._epoch, self._batches = -1, -1, iter(())
        self._skip_epochs(step)
        while self._step < step:
            self._advance()
        return self._batch

    def _skip_epochs(self, step: int) -> None:
        """Begin with the epoch of the step, if its number is known."""
        size = _length(self.loader)
        if size and step // size > max(self._step, 0) // size:
            self._epoch, self._step, self._batches = step // size - 1, step // size * size - 1, iter(())

    def _advance(self) -> None:
        with self._own_random_numbers():
            batch = next(self._batches, None)
        if batch is None:
            self._begin_epoch()
            with self._own_random_numbers():
                batch = next(self._batches, None)
            if batch is None:
                raise ValueError("the loader of the training data has no batch. Give at least one")
        self._step, self._batch = self._step + 1, batch

    def _begin_epoch(self) -> None:
        self._epoch += 1
        if callable(set_epoch := getattr(getattr(self.loader, "sampler", None), "set_epoch", None)):
            set_epoch(self._epoch)
        self._random = torch.Generator().manual_seed((self.seed * 1_000_003 + self._epoch) % 2**63).get_state()
        with self._own_random_numbers():
            self._batches = iter(self.loader)

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Use the random numbers of the loader, and restore PyTorch's afterwards."""
        before = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(before)


def _length(loader: Iterable[Any]) -> int:
    """Return the number of batches in an epoch; 0 if it is unknown."""
    try:
        return len(loader) if isinstance(loader, Sized) else 0
    except TypeError:  # a DataLoader has __len__, which fails if its data set streams
        return 0
