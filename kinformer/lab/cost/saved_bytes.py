"""saved_bytes: the memory that a training step keeps for its backward pass."""

from jaxtyping import Int
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from kinformer.core.model import Model


def saved_bytes(model: Model, tokens: Int[Tensor, "B T"]) -> int:
    """Return the bytes of memory that the forward pass of a training step keeps for the backward pass.

    Tensors that share memory count once. Weights, buffers and inputs do not count.

    model: model to train.
    tokens: batch.
    """
    excluded = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers(), tokens)}
    saved: list[Tensor] = []  # kept alive, so that no address is reused

    def note(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with saved_tensors_hooks(note, lambda x: x):
        loss = model.train()(tokens).total
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in saved}
    del loss
    return sum(size for place, size in storages.items() if place not in excluded)
