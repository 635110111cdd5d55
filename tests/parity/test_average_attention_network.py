"""The average attention network against OpenNMT-py's: the mean and what the gates make of it."""

import torch
from torch import Tensor

from kinformer.core.layer import Context, Layer
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mixers.average_attention import AverageAttention
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import copy_weights

NORM = ("ln_gamma", "ln_beta")


@goldens("average_attention_network")
def test_average_attention_network(golden: Golden, float64: None) -> None:
    """Where it has a feed-forward with a norm, that is OpenNMT's, which adds the mean to what it makes of it."""
    tensors = golden.tensors
    x = tensors["x"]
    d = x.shape[-1]
    layer = AverageAttention(d, feedforward(tensors, d), gate="W_g" in tensors)
    if layer.gate is not None:
        copy_weights(layer.gate, tensors["W_g"].T, tensors.get("b_g", torch.zeros(2 * d)))
    known_names = {"x", "mask", "y", "average", "W_g", "b_g", "W_1", "b_1", "W_2", "b_2", *NORM}
    assert tensors.keys() <= known_names, f"not read: {sorted(tensors.keys() - known_names)}"
    mask = tensors["mask"].bool() if "mask" in tensors else torch.ones(x.shape[:2], dtype=torch.bool)
    ctx = Context.of_sequence(x, mask)
    for name, ours in (("y", layer(x, None, ctx).y), ("average", layer.mean(x, None, ctx)[0])):
        if name in tensors:
            close(torch.where(mask[..., None], ours, tensors[name]), tensors[name])
    state, steps = layer.start(*x.shape[:2]), []
    for n in range(x.shape[1]):  # the form that decodes
        out = layer(x[:, n : n + 1], state, ctx.columns(n, n + 1))
        state = out.state
        steps.append(out.y)
    close(torch.where(mask[..., None], torch.cat(steps, 1), tensors["y"]), tensors["y"])


def feedforward(tensors: dict[str, Tensor], d: int) -> Layer | None:
    if "W_1" not in tensors:
        return None
    mlp = MLP(d, tensors["W_1"].shape[1], activation="relu")
    for linear, n in ((mlp.up, "1"), (mlp.down, "2")):
        weight = tensors[f"W_{n}"].T
        copy_weights(linear, weight, tensors.get(f"b_{n}", torch.zeros(len(weight))))
    if NORM[0] not in tensors:
        return mlp
    block = PreNorm(mlp)
    copy_weights(block.norms[0], tensors[NORM[0]], tensors.get(NORM[1], torch.zeros(d)))
    block.norms[0].eps = 1e-6
    return block
