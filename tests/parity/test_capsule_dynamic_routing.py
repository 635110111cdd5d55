"""Dynamic routing against gram-ai's CapsuleLayer, which normalises over input capsules."""

import torch

from kinformer.nn.aggregations.dynamic_routing import DynamicRouting
from tests.parity.goldens import Golden, close, goldens


@goldens("capsule_dynamic_routing")
def test_capsule_dynamic_routing(golden: Golden) -> None:
    tensors, shape = golden.tensors, golden.hyperparameters
    capsules, heads, v_dim, width = tensors["W"].shape
    part = DynamicRouting(
        heads, v_dim, capsules * width, capsules=capsules, iterations=shape["iters"], over="inputs"
    ).double()
    with torch.no_grad():
        part.votes.weight.copy_(tensors["W"].transpose(0, 1))
    y = tensors["u"][:, :, None]  # one token: [B H 1 V]
    out = part(y, torch.zeros(len(y), 1, dtype=torch.long))
    close(out.unflatten(-1, (capsules, width))[:, 0], tensors["out"])
