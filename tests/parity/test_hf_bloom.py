"""BLOOM against Hugging Face's on equal weights, whole: logits, loss, gradients, padding, decoding, greedy search.

Two roundings of theirs are undone, with which float64 agrees to 1e-7 alone: their softmax is taken in float32 whatever
the model's dtype, and their GELU has sqrt(2 / pi) to eight digits.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BloomConfig, BloomForCausalLM
from transformers.models.bloom import modeling_bloom

from kinformer.decoding.generate import generate
from kinformer.members.bloom import bloom
from kinformer.models.lm import LM
from tests.parity.peers import agree, copy_weights, gradient, left_padded, put_qkv, shaken

VOCAB, D, DEPTH = 19, 24, 3


@pytest.fixture(autouse=True)
def softmax_in_its_own_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        return x.softmax(dim)

    monkeypatch.setattr(modeling_bloom.F, "softmax", plain)


def peer(dtype: torch.dtype, heads: int = 4) -> BloomForCausalLM:
    config = BloomConfig(
        vocab_size=VOCAB,
        hidden_size=D,
        n_layer=DEPTH,
        n_head=heads,
        initializer_range=0.3,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = BloomForCausalLM(config)
    for layer in model.transformer.h:
        layer.mlp.gelu_impl = nn.GELU(approximate="tanh")
    return shaken(model.to(dtype).eval())  # type: ignore[return-value]


def ours_like(theirs: BloomForCausalLM) -> LM:
    model: Any = bloom(d=D, depth=DEPTH, heads=theirs.config.n_head, vocab=VOCAB).to(theirs.dtype).eval()
    first, *blocks = model.body.layers
    their = theirs.transformer
    copy_weights(model.embedding, their.word_embeddings.weight)
    copy_weights(first.norm, their.word_embeddings_layernorm.weight, their.word_embeddings_layernorm.bias)
    copy_weights(model.body.norm, their.ln_f.weight, their.ln_f.bias)
    for block, layer in zip(blocks, their.h, strict=True):
        attention, mlp = block.layers
        copy_weights(block.norms[0], layer.input_layernorm.weight, layer.input_layernorm.bias)
        copy_weights(block.norms[1], layer.post_attention_layernorm.weight, layer.post_attention_layernorm.bias)
        for n, name in enumerate("qkv"):
            put_qkv(attention.projection, name, *(third(x, layer, n) for x in fused(layer)))
        copy_weights(attention.aggregation.linear, layer.self_attention.dense.weight, layer.self_attention.dense.bias)
        copy_weights(mlp.up, layer.mlp.dense_h_to_4h.weight, layer.mlp.dense_h_to_4h.bias)
        copy_weights(mlp.down, layer.mlp.dense_4h_to_h.weight, layer.mlp.dense_4h_to_h.bias)
    return model


def fused(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.self_attention.query_key_value.weight, layer.self_attention.query_key_value.bias


def third(x: Tensor, layer: Any, n: int) -> Tensor:
    """Their rows are by head, then q, k, v, then within the head."""
    return x.unflatten(0, (layer.self_attention.num_heads, 3, -1))[:, n].flatten(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heads", [2, 6])
def test_logits(dtype: torch.dtype, heads: int) -> None:
    """Six heads are no power of two: their slopes are filled in between."""
    theirs = peer(dtype, heads)
    tokens = torch.randint(0, VOCAB, (3, 17))
    agree(ours_like(theirs).logits(tokens).y, theirs(input_ids=tokens).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_left_padded_logits_token_by_token(dtype: torch.dtype) -> None:
    theirs = peer(dtype)
    ours = ours_like(theirs)
    tokens, real = left_padded(VOCAB)
    expected = theirs(input_ids=tokens.clamp_min(0), attention_mask=real.long()).logits[real]
    agree(ours.logits(tokens).y[real], expected)
    state, steps = ours.start(4, 11, dtype=dtype), []
    for column in tokens.split(1, 1):
        out = ours.logits(column, state)
        state = out.state
        steps.append(out.y)
    agree(torch.cat(steps, 1)[real], expected)


def test_loss_and_gradients() -> None:
    theirs = peer(torch.float64)
    ours: Any = ours_like(theirs)
    tokens = torch.randint(0, VOCAB, (3, 17))
    loss = ours(tokens)
    their_loss = F.cross_entropy(theirs(input_ids=tokens).logits[:, :-1].transpose(1, 2), tokens[:, 1:])
    agree(loss.total, their_loss)
    loss.total.backward()
    their_loss.backward()
    agree(ours.embedding.weight.grad, theirs.transformer.word_embeddings.weight.grad)
    layer, block = theirs.transformer.h[0], ours.body.layers[1]
    agree(block.layers[1].up.weight.grad, layer.mlp.dense_h_to_4h.weight.grad)
    their_v = third(layer.self_attention.query_key_value.weight.grad, layer, 2)
    agree(gradient(block.layers[0].projection, "v"), their_v)


def test_greedy() -> None:
    theirs = peer(torch.float64)
    tokens, real = left_padded(VOCAB)
    inputs = {"input_ids": tokens.clamp_min(0), "attention_mask": real.long()}
    rows = theirs.generate(**inputs, max_new_tokens=14, do_sample=False)
    assert torch.equal(generate(ours_like(theirs), tokens, 14, temperature=0)[:, 11:], rows[:, 11:])
