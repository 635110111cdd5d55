"""The encoder-decoder against torch.nn.Transformer on equal weights, post-norm and pre-norm.

Theirs puts a norm behind encoder and decoder in either form. The paper has none behind post-norm blocks, and neither
does the member; here it is put on or taken off so that both sides are the same model.
"""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.transformer import transformer
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV
from tests.parity.peers import agree, copy_weights, gradient, put_qkv, shaken

VOCAB, D, DEPTH, HEADS, HIDDEN = 13, 24, 2, 4, 40


def peer(dtype: torch.dtype, pre_norm: bool, final: bool) -> nn.Transformer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that pre-norm has no fast path
        model = nn.Transformer(
            D, HEADS, DEPTH, DEPTH, HIDDEN, dropout=0.0, batch_first=True, norm_first=pre_norm, dtype=dtype
        )
    if not final:
        model.encoder.norm = model.decoder.norm = None
    return shaken(model)  # type: ignore[return-value]


def pre_norm_model() -> Seq2Seq:
    def block(causal: bool) -> PreNorm:
        itself = Attention(QKV(D, HEADS), Softmax(Causal() if causal else Full()))
        across = [Attention(QKV(D, HEADS), Softmax(Full()), cross=True)] if causal else []
        return PreNorm(itself, *across, MLP(D, HIDDEN, activation="relu"))

    encoder, decoder = (Stack([block(causal) for _ in range(DEPTH)]) for causal in (False, True))
    return Seq2Seq(VOCAB, D, encoder, decoder)


def ours_like(theirs: nn.Transformer, pre_norm: bool) -> Seq2Seq:
    post = transformer(d=D, depth=DEPTH, heads=HEADS, hidden=HIDDEN, vocab=VOCAB, dropout=0.0)
    model = (pre_norm_model() if pre_norm else post).to(theirs.encoder.layers[0].linear1.weight.dtype)
    for stack, their_stack in ((model.encoder, theirs.encoder), (model.decoder, theirs.decoder)):
        copy_stack(stack, their_stack)
    return model


def copy_stack(stack: Any, theirs: Any) -> None:
    if theirs.norm is not None:
        stack.norm = LayerNorm(D).to(theirs.norm.weight.dtype)
        copy_weights(stack.norm, theirs.norm.weight, theirs.norm.bias)
    for block, their in zip(stack.layers, theirs.layers, strict=True):
        *attentions, mlp = block.layers
        their_attentions = [their.self_attn, their.multihead_attn] if len(attentions) == 2 else [their.self_attn]
        for attention, their_attention in zip(attentions, their_attentions, strict=True):
            copy_attention(attention, their_attention)
        copy_weights(mlp.up, their.linear1.weight, their.linear1.bias)
        copy_weights(mlp.down, their.linear2.weight, their.linear2.bias)
        for n, norm in enumerate(block.norms, start=1):
            their_norm = getattr(their, f"norm{n}")
            copy_weights(norm, their_norm.weight, their_norm.bias)


def copy_attention(ours: Any, theirs: nn.MultiheadAttention) -> None:
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for name, weight, bias in zip("qkv", weights, biases, strict=True):
        put_qkv(ours.projection, name, weight, bias)
    copy_weights(ours.aggregation.linear, theirs.out_proj.weight, theirs.out_proj.bias)


def pairs() -> tuple[Tensor, Tensor]:
    """Source and target of several lengths, padded on the right: theirs gives NaN where a query may read nothing."""
    source, target = torch.randint(0, VOCAB, (4, 9)), torch.randint(0, VOCAB, (4, 7))
    for row, (s, t) in enumerate(((9, 7), (4, 2), (1, 5), (6, 1))):
        source[row, s:], target[row, t:] = -1, -1
    return source, target


def theirs_on(ours: Seq2Seq, theirs: nn.Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Logits: our embedding and the paper's positions below their stacks, the embedding again above."""

    def embedded(tokens: Tensor) -> Tensor:
        x = ours.embedding(tokens.clamp_min(0)) * ours.scale
        return x if ours.position is None else x + waves(tokens.shape[1], x.dtype)

    ahead = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    y = theirs(
        embedded(source),
        embedded(target),
        tgt_mask=ahead,
        src_key_padding_mask=source < 0,
        tgt_key_padding_mask=target < 0,
        memory_key_padding_mask=source < 0,
    )
    return y @ ours.embedding.weight[: VOCAB + 1].T


def waves(length: int, dtype: torch.dtype) -> Tensor:
    """PE(pos, 2n) = sin(pos / 10000^(2n/d)), PE(pos, 2n+1) = cos of the same."""
    rows = [
        [(math.cos if n % 2 else math.sin)(pos / 10000 ** ((n - n % 2) / D)) for n in range(D)] for pos in range(length)
    ]
    return torch.tensor(rows, dtype=dtype)


FORMS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("pre_norm", "final"), FORMS)
def test_logits(dtype: torch.dtype, pre_norm: bool, final: bool) -> None:
    theirs = peer(dtype, pre_norm, final)
    ours = ours_like(theirs, pre_norm)
    source, target = pairs()
    real = target >= 0
    agree(ours.logits(target, source=source).y[real], theirs_on(ours, theirs, source, target)[real])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("pre_norm", "final"), FORMS)
def test_decoding_token_by_token(dtype: torch.dtype, pre_norm: bool, final: bool) -> None:
    theirs = peer(dtype, pre_norm, final)
    ours = ours_like(theirs, pre_norm)
    source, target = pairs()
    state, steps = ours.start(4, 7, dtype=dtype), []
    for n, column in enumerate(target.split(1, 1)):
        out = ours.logits(column, state, source=None if n else source)
        state = out.state
        steps.append(out.y)
    real = target >= 0
    agree(torch.cat(steps, 1)[real], theirs_on(ours, theirs, source, target)[real])


@pytest.mark.parametrize(("pre_norm", "final"), FORMS)
def test_gradients(pre_norm: bool, final: bool) -> None:
    theirs: Any = peer(torch.float64, pre_norm, final)
    ours: Any = ours_like(theirs, pre_norm)
    source, target = pairs()
    real = target >= 0
    logits, their_logits = ours.logits(target, source=source).y[real], theirs_on(ours, theirs, source, target)[real]
    towards = torch.randn_like(logits)
    (logits * towards).sum().backward(inputs=list(ours.parameters()))
    (their_logits * towards).sum().backward(inputs=list(theirs.parameters()))
    encoder, their_encoder = ours.encoder.layers[0], theirs.encoder.layers[0]
    agree(encoder.layers[1].up.weight.grad, their_encoder.linear1.weight.grad)
    agree(gradient(encoder.layers[0].projection, "q"), their_encoder.self_attn.in_proj_weight.grad.chunk(3)[0])
    agree(encoder.norms[0].weight.grad, their_encoder.norm1.weight.grad)
    decoder, their_decoder = ours.decoder.layers[0], theirs.decoder.layers[0]
    agree(gradient(decoder.layers[1].projection, "k"), their_decoder.multihead_attn.in_proj_weight.grad.chunk(3)[1])
    agree(decoder.layers[0].aggregation.linear.bias.grad, their_decoder.self_attn.out_proj.bias.grad)
    agree(decoder.norms[1].bias.grad, their_decoder.norm2.bias.grad)
