"""Rotary against Hugging Face RoFormer (interleaved pairs) and Llama (pairs of halves)."""

import torch

from kinformer.positions.rotary import Rotary
from tests.parity.goldens import Golden, close, goldens


@goldens("rope")
def test_rope(golden: Golden) -> None:
    tensors = golden.tensors
    found = [(x, pairs) for x in ("q", "k") for pairs in ("interleaved", "half") if f"{x}_{pairs}" in tensors]
    assert found, f"nothing turned to compare with among {sorted(tensors)}"
    for x, pairs in found:
        batch, _, length, head_dim = tensors[x].shape
        ours = Rotary(head_dim, pairs=pairs)(tensors[x], torch.arange(length).expand(batch, length))
        close(ours, tensors[f"{x}_{pairs}"], tolerance(golden, f"{x}_{pairs}"))


def tolerance(golden: Golden, name: str) -> float:
    """1e-6, or what the golden records of its own distance from the formula: its angles are float32."""
    recorded = golden.json.get("verification", {}).get("max_abs_error", {}).get(name, 0.0)
    return max(1e-6, 1.01 * recorded / golden.tensors[name].abs().max().item())
