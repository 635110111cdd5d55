"""RealFormer's residual scores against x-transformers' residual attention: a stack of any depth, without norms."""

import torch
from torch import Tensor, nn

from kinformer.core.layer import Context
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.scores.residual import ResidualScores
from tests.parity.goldens import Golden, close, goldens


@goldens("realformer_residual_attention")
def test_realformer(golden: Golden, float64: None) -> None:
    tensors = golden.tensors
    pos = torch.arange(tensors["x"].shape[1]).expand(tensors["x"].shape[:2])
    depth = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))
    blocks = [PreNorm(layer(golden, n), norm=lambda d: nn.Identity()) for n in range(depth)]
    for n in range(1, depth + 1):
        out = Stack(blocks[:n])(tensors["x"], None, Context(pos))
        close(out.up["0.scores"].scores, tensors[f"scores_{n}"])
        close(out.y, tensors[f"y{n}"])
    assert f"y{depth + 1}" not in tensors


def layer(golden: Golden, n: int) -> Attention:
    """Layer n of the golden."""
    weights = {
        name.removeprefix(f"layers.{n}."): w for name, w in golden.tensors.items() if name.startswith(f"layers.{n}.")
    }
    assert weights.keys() <= {f"{kind}_{name}" for kind in "Wb" for name in "qkvo"}
    sizes = golden.hyperparameters
    mechanism = Explicit(Full(), score=ResidualScores(), up=True)
    attention = Attention(QKV(sizes["d"], sizes["heads"], head_dim=sizes["d_head"]), mechanism)
    for name in "qkv":
        fill(*attention.projection.matrix(name), weights, name)
    fill(attention.aggregation.linear.weight, attention.aggregation.linear.bias, weights, "o")
    return attention


def fill(weight: Tensor, bias: Tensor, weights: dict[str, Tensor], name: str) -> None:
    """Weights are stored for y = x W + b; an absent b is none."""
    weight.data.copy_(weights[f"W_{name}"].T)
    bias.data.copy_(weights.get(f"b_{name}", torch.zeros_like(bias)))
