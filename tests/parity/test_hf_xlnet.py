"""XLNet's relative attention against Hugging Face's model on equal weights: layers from both sides, and with a memory.

Their sinusoids are float32 whatever comes; here float64 gets its own, so that it can be compared in full.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import XLNetConfig, XLNetModel

from kinformer.core.bias import Plus
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.core.state import detach
from kinformer.nn.attention import Attention
from kinformer.nn.biases.relative_segment import RelativeSegment
from kinformer.nn.biases.transformer_xl import TransformerXL
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.hidden import Hidden
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV
from tests.parity.peers import agree, copy_weights, gradient, put_qkv

VOCAB, D, DEPTH, HEADS = 19, 24, 2, 4
LENGTH, MEMORY = 6, 6
SEGMENT = (torch.arange(11) > torch.tensor([[4], [7], [10]])).long() + torch.tensor([[0], [1], [0]])


def peer(dtype: torch.dtype, attn_type: str) -> XLNetModel:
    config = XLNetConfig(
        vocab_size=VOCAB,
        d_model=D,
        n_layer=DEPTH,
        n_head=HEADS,
        d_inner=4 * D,
        ff_activation="gelu",
        attn_type=attn_type,
        initializer_range=0.3,
        dropout=0.0,
        mem_len=MEMORY,
    )
    theirs = XLNetModel(config).to(dtype).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return theirs


@pytest.fixture(autouse=True)
def sinusoids_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = XLNetModel.relative_positional_encoding

    def exact(self: XLNetModel, qlen: int, klen: int, **keywords: Any) -> Tensor:
        rounded = theirs(self, qlen, klen, **keywords)
        if self.dtype == torch.float32:
            return rounded
        distance = torch.arange(klen, -qlen if self.attn_type == "bi" else -1, -1.0, dtype=torch.float64)
        frequency = 10000 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        full = self.positional_embedding(distance, frequency, keywords["bsz"])
        agree(rounded.double(), full, 1e-5)
        return full

    monkeypatch.setattr(XLNetModel, "relative_positional_encoding", exact)


def ours_like(theirs: XLNetModel, pattern: Pattern, memory: bool = False) -> Stack:
    def block(their: Any) -> PostNorm:
        bias = TransformerXL(HEADS, D // HEADS, D)
        relation = RelativeSegment(HEADS, D // HEADS)
        memory_part = Hidden(LENGTH, MEMORY) if memory else None
        layer_block = PostNorm(
            Attention(QKV(D, HEADS, bias=False), Softmax(pattern, Plus(bias, relation)), memory=memory_part),
            MLP(D),
            norm=lambda d: LayerNorm(d, eps=1e-12),
        ).to(theirs.dtype)
        attention: Any = layer_block.layers[0]
        mlp: Any = layer_block.layers[1]
        own = their.rel_attn
        for name in "qkv":
            put_qkv(attention.projection, name, getattr(own, name).flatten(1).T)
        copy_weights(attention.aggregation.linear, own.o.flatten(1))
        copy_weights(bias.position, own.r.flatten(1).T)
        with torch.no_grad():
            bias.u.copy_(own.r_w_bias)
            bias.v.copy_(own.r_r_bias)
            relation.u.copy_(own.r_s_bias)
            relation.keys.copy_(own.seg_embed.transpose(0, 1))
        copy_weights(layer_block.norms[0], own.layer_norm.weight, own.layer_norm.bias)
        copy_weights(mlp.up, their.ff.layer_1.weight, their.ff.layer_1.bias)
        copy_weights(mlp.down, their.ff.layer_2.weight, their.ff.layer_2.bias)
        copy_weights(layer_block.norms[1], their.ff.layer_norm.weight, their.ff.layer_norm.bias)
        return layer_block

    return Stack([block(their) for their in theirs.layer])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("attn_type", "pattern"), [("bi", Full()), ("uni", Causal())])
def test_layers(dtype: torch.dtype, attn_type: str, pattern: Pattern) -> None:
    theirs, tokens = peer(dtype, attn_type), torch.randint(0, VOCAB, (3, 11))
    ctx = Context(torch.arange(11).expand(3, -1), run=True)
    ours = ours_like(theirs, pattern)(theirs.word_embedding(tokens), None, ctx).y
    agree(ours, theirs(input_ids=tokens, use_mems=False).last_hidden_state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("attn_type", "pattern"), [("bi", Full()), ("uni", Causal())])
def test_segments(dtype: torch.dtype, attn_type: str, pattern: Pattern) -> None:
    theirs, tokens = peer(dtype, attn_type), torch.randint(0, VOCAB, (3, 11))
    ctx = Context(torch.arange(11).expand(3, -1), run=True, labels={"segment": SEGMENT})
    ours = ours_like(theirs, pattern)(theirs.word_embedding(tokens), None, ctx).y
    agree(ours, theirs(input_ids=tokens, token_type_ids=SEGMENT, use_mems=False).last_hidden_state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_segments_and_padding(dtype: torch.dtype) -> None:
    """From both sides alone: their causal mask does not take the padding of a batch."""
    theirs, tokens = peer(dtype, "bi"), torch.randint(0, VOCAB, (3, 11))
    pos = torch.arange(11).repeat(3, 1)
    pos[1, 8:] = pos[2, 5:] = -1
    ctx = Context(pos, run=True, labels={"segment": SEGMENT})
    ours = ours_like(theirs, Full())(theirs.word_embedding(tokens), None, ctx).y
    mask = (pos >= 0).to(dtype)
    want = theirs(input_ids=tokens, token_type_ids=SEGMENT, attention_mask=mask, use_mems=False).last_hidden_state
    agree(ours[pos >= 0], want[pos >= 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_memory_of_the_segment_before(dtype: torch.dtype) -> None:
    theirs, tokens = peer(dtype, "uni"), torch.randint(0, VOCAB, (3, 3 * LENGTH))
    ours = ours_like(theirs, Causal() & Segment(LENGTH, MEMORY), memory=True).train()
    state, mems = ours.start(3, LENGTH, dtype=dtype), None
    for n in range(3):
        columns = slice(n * LENGTH, (n + 1) * LENGTH)
        want = theirs(input_ids=tokens[:, columns], mems=mems, use_mems=True)
        mems = want.mems
        ctx = Context(torch.arange(3 * LENGTH)[columns].expand(3, -1), run=True)
        out = ours(theirs.word_embedding(tokens[:, columns]), state, ctx)
        state = detach(out.state)
        agree(out.y, want.last_hidden_state)


def test_gradients() -> None:
    theirs, tokens = peer(torch.float64, "bi"), torch.randint(0, VOCAB, (3, 11))
    ours: Any = ours_like(theirs, Full())
    segment = (torch.arange(11) > 5).long().expand(3, -1)
    ctx = Context(torch.arange(11).expand(3, -1), run=True, labels={"segment": segment})
    ours(theirs.word_embedding(tokens).detach(), None, ctx).y.sin().sum().backward()
    theirs(input_ids=tokens, token_type_ids=segment, use_mems=False).last_hidden_state.sin().sum().backward()
    attention, own = ours.layers[0].layers[0], theirs.layer[0].rel_attn
    distance, relation = attention.mechanism.bias.biases
    agree(distance.position.weight.grad.T, own.r.grad.flatten(1))
    agree(distance.u.grad, own.r_w_bias.grad)
    agree(distance.v.grad, own.r_r_bias.grad)
    agree(relation.u.grad, own.r_s_bias.grad)
    agree(relation.keys.grad.transpose(0, 1), own.seg_embed.grad)
    agree(gradient(attention.projection, "k").T, own.k.grad.flatten(1))
