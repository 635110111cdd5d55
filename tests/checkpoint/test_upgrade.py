"""What earlier versions saved: its weights and what the optimiser knew of them, loaded into today's parts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.checkpoint.weights_file import load_tensors, tensors_of
from kinformer.lab.train.optimiser import adamw
from kinformer.lab.train.training_tensors import optimiser_tensors, restore_optimiser
from kinformer.members.bp_transformer import bp_transformer
from kinformer.members.gpt import gpt
from kinformer.members.memory_compressed_transformer import memory_compressed_transformer

SMALL: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "vocab": 11}


def relative() -> Any:
    return gpt(**SMALL, position="relative")


def with_rows_ahead(name: str, tensor: Tensor) -> Tensor:
    """A table of distances from -16 to 16, as causal layers had it; the rows ahead were never read."""
    table = name.endswith(("bias.keys", "bias.added")) and tensor.dim() > 1
    return torch.cat([tensor, torch.randn(16, tensor.shape[1])]) if table else tensor


def with_every_type(name: str, tensor: Tensor) -> Tensor:
    """A table of all types of edges, 2 k + 1 a level: those of spans behind a token were never read."""
    if not name.endswith("bias.keys") or tensor.dim() < 2:
        return tensor
    of_level = tensor.unflatten(0, (-1, 3))  # k = 2: itself and two spans before
    own, before = of_level[:, :1], of_level[:, 1:]
    return torch.cat([own, torch.stack([before, torch.randn_like(before)], 2).flatten(1, 2)], 1).flatten(0, 1)


def without_later_projections(name: str, tensor: Tensor) -> Tensor | None:
    """One projection for all layers."""
    return None if "layers.1.layers.0.projection" in name else tensor


CASES = [
    (relative, with_rows_ahead),
    (lambda: bp_transformer(**SMALL, k=2, clip=2), with_every_type),
    (lambda: memory_compressed_transformer(**SMALL, length=32), without_later_projections),
]


def trained(model: Any) -> torch.optim.AdamW:
    optimiser = adamw(model, 1e-2, 0.0)
    model(torch.randint(11, (2, 20))).total.backward()
    optimiser.step()
    return optimiser


@pytest.mark.parametrize(("make", "earlier"), CASES, ids=["relative", "tree", "projection"])
def test_weights_and_the_optimiser_of_an_earlier_version_go_on(make: Any, earlier: Any) -> None:
    model = make()
    if earlier is without_later_projections:
        model.body.layers[1].layers[0].projection.load_state_dict(
            model.body.layers[0].layers[0].projection.state_dict()
        )
    optimiser = trained(model)
    if earlier is without_later_projections:  # as if one weight had been trained
        first, second = (layer.layers[0].projection for layer in model.body.layers)
        second.load_state_dict(first.state_dict())
        for parameter, other in zip(first.parameters(), second.parameters(), strict=True):
            optimiser.state[other] = {key: value.clone() for key, value in optimiser.state[parameter].items()}
    weights = dict(tensors_of(model))
    optimiser_state = optimiser_tensors(model, optimiser)

    def saved(tensors: dict[str, Tensor], name_of: Any) -> dict[str, Tensor]:
        old = {name: earlier(name_of(name), tensor) for name, tensor in tensors.items()}
        return {name: tensor for name, tensor in old.items() if tensor is not None}

    old_weights = saved(weights, lambda name: name)
    old_known = saved(optimiser_state, lambda name: name.split("/")[1])
    assert {name: tensor.shape for name, tensor in old_weights.items()} != {n: t.shape for n, t in weights.items()}
    restored = make()
    load_tensors(restored, old_weights, Path("model.safetensors"))
    other = trained_anew(restored, old_known)
    for name, tensor in tensors_of(restored):
        assert torch.equal(tensor, weights[name]), name
    for name, tensor in optimiser_tensors(restored, other).items():
        assert torch.equal(tensor, optimiser_state[name]), name


def trained_anew(model: Any, optimiser_state: dict[str, Tensor]) -> torch.optim.AdamW:
    optimiser = adamw(model, 1e-2, 0.0)
    restore_optimiser(model, optimiser, optimiser_state)
    return optimiser
