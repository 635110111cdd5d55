"""Hard-coded Gaussian attention against a published code's: values by densities that nothing divides."""

import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.biases.hard_coded_gaussian import HardCodedGaussian
from kinformer.nn.mechanisms.unnormalised import Unnormalised
from kinformer.nn.projections.value_projection import ValueProjection
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import copy_weights


@goldens("hardcoded_gaussian_attention")
def test_hardcoded_gaussian_attention(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    known_names = {"x", "W_v", "W_o", "b_v", "b_o", "mask", "y"}
    assert tensors.keys() <= known_names, f"not read: {sorted(tensors.keys() - known_names)}"
    x, heads = tensors["x"], sizes.get("heads", len(sizes["offsets"]))
    stds = sizes.get("stds", sizes.get("std", 1.0))
    bias = HardCodedGaussian(tuple(sizes["offsets"]), tuple(stds) if isinstance(stds, list) else stds)
    pattern = Causal() if sizes.get("causal") else Full()
    layer = Attention(
        ValueProjection(x.shape[-1], heads, v_dim=tensors["W_v"].shape[1] // heads), Unnormalised(pattern, bias)
    )
    for ours, name in ((layer.projection.v, "v"), (layer.aggregation.linear, "o")):
        weight = tensors[f"W_{name}"].T
        copy_weights(ours, weight, tensors.get(f"b_{name}", torch.zeros(len(weight))))
    real = tensors["mask"].bool() if "mask" in tensors else torch.ones(x.shape[:2], dtype=torch.bool)
    # positions are columns, as in the code, also where padding stands first
    pos = torch.where(real, torch.arange(x.shape[1]), -1)
    y = layer(x, None, Context(pos, run=True)).y
    close(y * real[..., None], tensors["y"] * real[..., None])
