"""One Transformer-XL attention with its memory against the authors' own code."""

import torch
from torch import Tensor, nn

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.nn.attention import Attention
from kinformer.nn.biases.transformer_xl import TransformerXL, sinusoids
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.hidden import Hidden, HiddenStates
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens


def attention(tensors: dict[str, Tensor], sizes: dict[str, int], segment: int, memory: int) -> Attention:
    """An attention layer with the weights of a golden."""
    d, heads, head_dim = sizes["d"], sizes["heads"], sizes["d_head"]
    bias = TransformerXL(heads, head_dim, d, u=nn.Parameter(tensors["u"]), v=nn.Parameter(tensors["v"]))
    mechanism = Softmax(Causal() & Segment(segment, memory), bias)
    projection = QKV(d, heads, head_dim=head_dim, bias=False)
    layer = Attention(projection, mechanism, memory=Hidden(segment, memory)).double()
    matrices = {
        "projection.qkv.weight": torch.cat([tensors[name].T for name in ("W_q", "W_kE", "W_v")]),
        "mechanism.bias.position.weight": tensors["W_kR"].T,
        "mechanism.bias.u": tensors["u"],
        "mechanism.bias.v": tensors["v"],
        "aggregation.linear.weight": tensors["W_o"].T,
    }
    layer.load_state_dict(matrices)
    return layer


@goldens("transformer_xl_attention")
def test_attention_with_a_memory(golden: Golden) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    x, mem = tensors["x"], tensors["mem"]
    (batch, length, _), memory_length = x.shape, mem.shape[1]
    layer = attention(tensors, sizes, length, memory_length).train()
    first = -(-memory_length // length) * length  # where a segment begins that has all of the memory before it
    pos = torch.arange(first - memory_length, first + length).expand(batch, -1)
    state = HiddenStates(mem, pos[:, :memory_length], torch.full((batch,), first))
    out = layer(x, state, Context(pos[:, memory_length:], run=True))
    close(out.y, tensors["attn_out"])
    norm = LayerNorm(sizes["d"]).double()
    norm.load_state_dict({"weight": tensors["ln_gamma"], "bias": tensors["ln_beta"]})
    close(norm(x + out.y), tensors["y"])


@goldens("transformer_xl_attention")
def test_sinusoids(golden: Golden) -> None:
    theirs = golden.tensors["R"]
    far_to_near = torch.arange(len(theirs)).flip(0)
    close(sinusoids(far_to_near, theirs.shape[1], torch.float64), theirs)
