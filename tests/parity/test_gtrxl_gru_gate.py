"""The gate of GTrXL against DI-engine's, which has the paper's equations."""

import torch
from torch import Tensor

from kinformer.nn.blocks.gru_gate import GRUGate
from tests.parity.goldens import Golden, close, goldens


def gru_gate(tensors: dict[str, Tensor], place: str = "") -> GRUGate:
    """A gate with the weights that stand under a place of a golden; without a b_g there it is 0."""
    own = {name: tensors[place + name].T for name in ("W_r", "W_z", "W_g", "U_r", "U_z", "U_g")}
    width = len(own["U_g"])
    b_g = tensors.get(f"{place}b_g", torch.zeros((), dtype=torch.float64))
    gate = GRUGate(width, b_g=0).double()
    gate.load_state_dict(
        {
            "w.weight": torch.cat([own["W_r"], own["W_z"], own["W_g"]]),
            "u.weight": torch.cat([own["U_r"], own["U_z"]]),
            "u_g.weight": own["U_g"],
            "b_g": b_g.expand(width),
        }
    )
    return gate


@goldens("gtrxl_gru_gate")
def test_the_gate(golden: Golden) -> None:
    tensors = golden.tensors
    close(gru_gate(tensors).gate(tensors["x"], tensors["y"]), tensors["g"])
