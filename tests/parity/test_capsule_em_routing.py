"""EM routing against yl-1993's ConvCaps, which renormalises the weights of votes; votes and activations are given."""

import torch

from kinformer.nn.aggregations.em_routing import EMRouting
from tests.parity.goldens import Golden, close, goldens


@goldens("capsule_em_routing")
def test_capsule_em_routing(golden: Golden) -> None:
    tensors, shape = golden.tensors, golden.hyperparameters
    _, heads, capsules, width = tensors["votes"].shape
    part = EMRouting(
        heads,
        width,
        capsules * width,
        capsules=capsules,
        iterations=shape["iters"],
        sharpness=shape["lam"],
        weights="renormalised",
    ).double()
    with torch.no_grad():
        part.beta_u.copy_(tensors["beta_u"])
        part.beta_a.copy_(tensors["beta_a"])
    means, active = part.route(tensors["votes"], tensors["a_in"][..., 0])
    close(means, tensors["mu"])
    close(active, tensors["a_out"])
