"""One Compressive Transformer attention, what it remembers and what it loses, against another's code.

The source's relative keys count slots, as the default does; where its memory is longer or
shorter than the segment, its loss compares with all of the memory in place of what is compressed.
"""

import torch
from torch import Tensor

from kinformer.core.bias import Bias, ScoreFn, at
from kinformer.core.layer import Context
from kinformer.core.memory_compression import Slots
from kinformer.core.patterns.causal import Causal
from kinformer.core.request import Request
from kinformer.nn.attention import Attention
from kinformer.nn.biases.relative import Relative
from kinformer.nn.losses.compression import AttentionReconstruction
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.compression import StridedConv
from kinformer.nn.memories.compressive import Compressive, CompressiveStates
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens


class KeysByDistance(Bias):
    """The source's positions: Shaw's keys, a table for each head."""

    def __init__(self, table: Tensor):
        super().__init__()
        self.heads = torch.nn.ModuleList()
        for keys in table:
            relative = Relative(table.shape[2], len(keys) - 1, values=False)
            relative.keys.data[: len(keys)] = keys  # row K - 1 - distance, as in Relative
            self.heads.append(relative)

    def bind(self, piece: Request) -> ScoreFn:
        q, q_pos, k_pos = piece.queries.q, piece.queries.pos, piece.keys.pos
        terms = [torch.einsum("btk,nk->btn", q[:, n], r.keys) for n, r in enumerate(self.heads)]
        table, clip = torch.stack(terms, 1) * piece.scale, self.heads[0].clip

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            ahead = at(k_pos, b, h, j) - at(q_pos, b, h, i)
            return s + table[b, h, i, ahead.clamp(-clip, clip) + clip]

        return score


def attention(golden: Golden) -> Attention:
    """An attention layer with the weights of a golden; what has no tensor there is zero."""
    sizes, tensors = golden.hyperparameters, golden.tensors
    d, heads, length = sizes["d"], sizes["heads"], tensors["x"].shape[1]
    conv, loss = StridedConv(d, sizes["ratio"]), AttentionReconstruction("mse")
    memory = Compressive(length, sizes["mem_len"], sizes["cmem_len"], conv, loss)
    mechanism = Softmax(Causal() & memory.reads, KeysByDistance(tensors["pos"]))
    layer = Attention(QKV(d, heads), mechanism, memory=memory).double()
    names = [f"{kind}_{name}" for name in "qkv" for kind in "Wb"]
    weights, biases = [tensors[name].T for name in names[::2]], [tensors.get(name) for name in names[1::2]]
    rows = [torch.zeros(len(w), dtype=w.dtype) if b is None else b for w, b in zip(weights, biases, strict=True)]
    with torch.no_grad():
        copy_weights(layer.projection.qkv, torch.cat(weights), torch.cat(rows))
        copy_weights(layer.aggregation.linear, tensors["W_o"].T, tensors.get("b_o"))
        copy_weights(memory.compression.down, tensors["W_c"], tensors.get("b_c"))
    return layer.train()


def copy_weights(layer: torch.nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    layer.weight.copy_(weight)
    layer.bias.zero_() if bias is None else layer.bias.copy_(bias)


def state(golden: Golden) -> tuple[CompressiveStates, Tensor]:
    """The golden's memories before a segment, and the positions of its tokens."""
    mem, cmem = golden.tensors["mem"], golden.tensors["cmem"]
    batch, length, _ = golden.tensors["x"].shape
    memory_length, slots = mem.shape[1], cmem.shape[1]
    first = -(-(memory_length + slots) // length) * length
    pos = torch.arange(first - memory_length - slots, first + length).expand(batch, -1)
    old = Slots(cmem, pos[:, :slots])
    used = mem.new_zeros(batch, memory_length)
    begun = torch.full((batch,), first)
    left = attention(golden).start(batch, length).left
    return CompressiveStates(mem, pos[:, slots : slots + memory_length], used, old, left, begun), pos[
        :, slots + memory_length :
    ]


@goldens("compressive_transformer_attention")
def test_attention_and_both_memories(golden: Golden) -> None:
    tensors, layer = golden.tensors, attention(golden)
    before, pos = state(golden)
    out = layer(tensors["x"], before, Context(pos, run=True))
    close(out.y, tensors["y"])
    remembered = out.state.x[out.state.pos >= 0]
    close(remembered.view(tensors["new_mem"].shape), tensors["new_mem"])
    close(out.state.old.x, tensors["new_cmem"])
    assert (out.state.old.pos[:, 1:] > out.state.old.pos[:, :-1]).all()
    assert (out.state.old.pos[:, -1:] < out.state.pos)[out.state.pos >= 0].all()


@goldens("compressive_transformer_attention")
def test_the_loss_and_what_it_moves(golden: Golden) -> None:
    tensors, layer = golden.tensors, attention(golden)
    before, pos = state(golden)
    down = layer.memory.compression.down
    if tensors["mem"].shape[1] == tensors["x"].shape[1]:
        loss = layer(tensors["x"], before, Context(pos, run=True)).aux["attention_reconstruction"].mean()
    else:
        leaving = torch.cat([tensors["mem"], tensors["x"]], 1)[:, : tensors["x"].shape[1]]
        new, mem = down(leaving.mT).mT, tensors["mem"]
        is_real = [torch.ones(states.shape[:2], dtype=torch.bool) for states in (mem, new)]
        loss = AttentionReconstruction("mse")(
            tensors["x"], mem, is_real[0], new, is_real[1], layer._read_content
        ).mean()
    close(loss, tensors["attn_reconstruction_loss"])
    loss.backward()
    close(down.weight.grad, tensors["grad_W_c"])
    if "grad_b_c" in tensors:
        close(down.bias.grad, tensors["grad_b_c"])
    changed = {name for name, weight in layer.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert changed == {"memory.compression.down.weight", "memory.compression.down.bias"}
