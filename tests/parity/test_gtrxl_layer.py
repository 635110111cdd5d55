"""A layer of GTrXL with its memory against DI-engine's, whose queries are of a stream that is not normed.

DI-engine's second ReLU behind the feed-forward changes nothing, and its biases of keys and of distances move all scores
of a query alike, which no softmax sees: of the paper's layer it is another one by its queries alone.
"""

import torch
from torch import Tensor, nn

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.core.residual_block import ResidualBlock
from kinformer.nn.attention import Attention
from kinformer.nn.biases.transformer_xl import TransformerXL, sinusoids
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.hidden import Hidden, HiddenStates
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.normed import NormedKeys
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens
from tests.parity.test_gtrxl_gru_gate import gru_gate


def fill(part: nn.Module, weights: list[Tensor], biases: list[Tensor | None]) -> None:
    """Matrices y = x @ W + b, one below the other; a bias that is none is 0."""
    filled_biases = [torch.zeros_like(w[0]) if b is None else b for w, b in zip(weights, biases, strict=True)]
    part.load_state_dict({"weight": torch.cat([w.T for w in weights]), "bias": torch.cat(filled_biases)})


def norm(tensors: dict[str, Tensor], name: str, d: int) -> nn.Module:
    if f"{name}_gamma" not in tensors:
        return nn.Identity()
    layer_norm, gain = LayerNorm(d).double(), tensors[f"{name}_gamma"]
    layer_norm.load_state_dict({"weight": gain, "bias": tensors.get(f"{name}_beta", torch.zeros_like(gain))})
    return layer_norm


def layer(golden: Golden, length: int, memory_length: int) -> ResidualBlock:
    sizes, tensors = golden.hyperparameters, golden.tensors
    d, heads, width = sizes["d"], sizes["heads"], sizes["d_head"]
    u, v = (nn.Parameter(tensors.get(name, torch.zeros(heads, width).double())) for name in "uv")
    bias = TransformerXL(heads, width, d, u=u, v=v)
    projection = QKV(d, heads, head_dim=width)
    attention = Attention(
        NormedKeys(projection, norm(tensors, "ln1", d)),
        Softmax(Causal() & Segment(length, memory_length), bias),
        memory=Hidden(length, memory_length),
    ).double()
    mlp = MLP(d, tensors["W_1"].shape[1], activation="relu").double()
    bias.position.load_state_dict({"weight": tensors["W_kR"].T})
    fill(projection.qkv, [tensors[f"W_{n}"] for n in "qkv"], [tensors.get(f"b_{n}") for n in "qkv"])
    for part, n in ((attention.aggregation.linear, "o"), (mlp.up, "1"), (mlp.down, "2")):
        fill(part, [tensors[f"W_{n}"]], [tensors.get(f"b_{n}")])
    gates = [gru_gate(tensors, f"gate{n}.") for n in (1, 2)]
    return ResidualBlock([attention, mlp], gates, [nn.Identity(), norm(tensors, "ln2", d)])


@goldens("gtrxl_layer")
def test_a_layer_with_its_memory(golden: Golden) -> None:
    tensors = golden.tensors
    x = tensors["x"]
    mem = tensors.get("mem", x[:, :0])
    (batch, length, _), memory_length = x.shape, mem.shape[1]
    first = -(-memory_length // length) * length  # where a segment begins that has all of the memory before it
    pos = torch.arange(first - memory_length, first + length).expand(batch, -1)
    state = (HiddenStates(mem, pos[:, :memory_length], torch.full((batch,), first)), ())
    out = layer(golden, length, memory_length).train()(x, state, Context(pos[:, memory_length:], run=True))
    close(out.y, tensors["y"])


@goldens("gtrxl_layer")
def test_sinusoids(golden: Golden) -> None:
    theirs = golden.tensors["R"]
    far_to_near = torch.arange(len(theirs)).flip(0)
    close(sinusoids(far_to_near, theirs.shape[1], torch.float64), theirs)
