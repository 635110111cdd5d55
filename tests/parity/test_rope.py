"""Rotary against Hugging Face RoFormer (interleaved pairs) and Llama (pairs of halves)."""

import torch

from kinformer.nn.positions.rotary import Rotary
from tests.parity.goldens import Golden, close, goldens


@goldens("rope")
def test_rope(golden: Golden) -> None:
    tensors, sizes = golden.tensors, golden.hyperparameters
    kinds = [(x, pairs) for x in ("q", "k") for pairs in ("interleaved", "half") if f"{x}_{pairs}" in tensors]
    assert kinds, f"nothing turned to compare with among {sorted(tensors)}"
    for x, pairs in kinds:
        batch, _, length, head_dim = tensors[x].shape
        pos = tensors.get("positions", torch.arange(length)).expand(batch, length)
        rotary = Rotary(head_dim, base=sizes.get("base", 10000.0), pairs=pairs, turned=sizes.get("turned"))
        close(rotary(tensors[x], pos), tensors[f"{x}_{pairs}"], tolerance(golden, f"{x}_{pairs}"))


def tolerance(golden: Golden, name: str) -> float:
    """1e-6, or what the golden records of its own distance from the formula: its angles are float32."""
    recorded = golden.json.get("verification", {}).get("max_abs_error", {}).get(name, 0.0)
    return max(1e-6, 1.01 * recorded / golden.tensors[name].abs().max().item())
