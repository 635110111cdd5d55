"""FrozenBuffers: buffers that `after_step` changes stay fixed while a policy is learned from."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from kinformer.core.after_step import has_after_step


class FrozenBuffers:
    """Freezes the buffers that `after_step` changes while a model learns several steps from one rollout.

    PPO compares the policy that learns with the policy that acted, so only weights may differ between them. Redrawn
    features, centroids and step counts are buffers. The steps of an update change a copy of them, and `release` writes
    the copy to the model before the next rollout. Changes of parameters by `after_step`, such as a clamp, take effect
    at once.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.changed: dict[str, Tensor] = {}

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Let `after_step` change the copy; on exit the model has its frozen buffers again."""
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
