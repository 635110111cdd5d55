"""Sinusoidal against OpenNMT's PositionalEncoding, in both layouts."""

from kinformer.nn.positions.sinusoidal import Sinusoidal
from tests.parity.goldens import Golden, close, goldens


@goldens("sinusoidal_position_encoding")
def test_sinusoidal_position_encoding(golden: Golden) -> None:
    layouts = [layout for layout in ("interleaved", "concat") if f"pe_{layout}" in golden.tensors]
    assert layouts, f"no table to compare with among {sorted(golden.tensors)}"
    for layout in layouts:
        ours = Sinusoidal(golden.hyperparameters["d"], layout=layout).double()(golden.tensors["positions"][None])[0]
        close(ours, golden.tensors[f"pe_{layout}"], tolerance(golden, f"pe_{layout}"))


def tolerance(golden: Golden, name: str) -> float:
    """1e-6, or what the golden records of its own distance from the formula: its angles are float32."""
    recorded = golden.json.get("verification", {}).get("max_abs_error", {}).get(name, 0.0)
    return max(1e-6, 1.01 * recorded / golden.tensors[name].abs().max().item())
