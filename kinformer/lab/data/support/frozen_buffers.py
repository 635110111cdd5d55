"""FrozenBuffers: keep the buffers of a policy fixed while it learns several steps from one rollout."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from kinformer.core.after_step import has_after_step


class FrozenBuffers:
    """Keeps the buffers of a model fixed while it learns several steps from one rollout.

    These are the buffers that `after_step`, the update of a module after each training step, changes: redrawn features,
    centroids and step counts. PPO compares the policy that learns with the policy that acted, so only weights may
    differ between them. Training steps therefore change a copy of the buffers, and `release` writes the copy to the
    model before the next rollout. Changes of parameters by `after_step`, such as a clamp, take effect at once.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.changed: dict[str, Tensor] = {}

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Context in which `after_step` changes the copy; on exit the model has its fixed buffers again."""
        frozen = self._copy_buffers()
        self.release()
        try:
            yield
        finally:
            self.changed = self._copy_buffers()
            self._fill(frozen)

    def release(self) -> None:
        """Write the changed copy of the buffers to the model."""
        self._fill(self.changed)

    def _copy_buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self._buffers().items()}

    def _fill(self, values: Mapping[str, Tensor]) -> None:
        buffers = self._buffers()
        for name, value in values.items():
            buffers[name].copy_(value)

    def _buffers(self) -> dict[str, Tensor]:
        """Return the buffers of all modules with `after_step`, and of their submodules."""
        return {
            name: buffer
            for path, module in self.model.named_modules()
            if has_after_step(module)
            for name, buffer in module.named_buffers(path)
        }
