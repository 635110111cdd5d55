"""Llama against Hugging Face's on equal weights. Theirs takes norms and rotary angles in float32 whatever the model's
dtype, so float64 agrees to float32's digits; with those two of their modules in float64 it agrees to 1e-10."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from kinformer.decoding.generate import generate
from kinformer.members.llama import llama
from kinformer.models.lm import LM
from tests.parity.peers import agree, copy_weights, gradient, left_padded, put_qkv, shaken

VOCAB, D, DEPTH, HEADS, HIDDEN, BASE = 19, 24, 3, 4, 40, 500.0


def peer(dtype: torch.dtype, key_heads: int = 2, tie: bool = False) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=D,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        num_key_value_heads=key_heads,
        intermediate_size=HIDDEN,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
        rms_norm_eps=1e-6,
        initializer_range=0.3,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return shaken(LlamaForCausalLM(config).to(dtype).eval())  # type: ignore[return-value]


def ours_like(theirs: LlamaForCausalLM) -> LM:
    config = theirs.config
    model: Any = llama(
        d=D,
        depth=DEPTH,
        heads=HEADS,
        key_heads=config.num_key_value_heads,
        hidden=HIDDEN,
        vocab=VOCAB,
        base=BASE,
        tie=config.tie_word_embeddings,
    )
    model = model.to(theirs.dtype).eval()
    copy_weights(model.embedding, theirs.model.embed_tokens.weight)
    copy_weights(model.head, theirs.lm_head.weight)
    copy_weights(model.body.norm, theirs.model.norm.weight)
    for block, their in zip(model.body.layers, theirs.model.layers, strict=True):
        attention, gated = block.layers
        copy_weights(block.norms[0], their.input_layernorm.weight)
        copy_weights(block.norms[1], their.post_attention_layernorm.weight)
        put_qkv(attention.projection, "q", their.self_attn.q_proj.weight)
        put_qkv(attention.projection, "k", their.self_attn.k_proj.weight)
        put_qkv(attention.projection, "v", their.self_attn.v_proj.weight)
        copy_weights(attention.aggregation.linear, their.self_attn.o_proj.weight)
        copy_weights(gated.gate, their.mlp.gate_proj.weight)
        copy_weights(gated.up, their.mlp.up_proj.weight)
        copy_weights(gated.down, their.mlp.down_proj.weight)
    return model


class Angles(nn.Module):
    """cos and sin of pos * base^(-2n/K), for n twice over, in float64: what their rotary module gives in float32."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        width = D // HEADS
        each = [[float(p) * BASE ** (-2 * (n % (width // 2)) / width) for n in range(width)] for p in range(64)]
        table = torch.tensor(each, dtype=torch.float64)
        return table.cos()[position_ids], table.sin()[position_ids]


def in_float64(theirs: LlamaForCausalLM) -> LlamaForCausalLM:
    """Their model with its norms and angles in float64."""

    def norm(old: nn.Module) -> nn.RMSNorm:
        new = nn.RMSNorm(D, eps=1e-6, dtype=torch.float64)
        new.weight = old.weight
        return new

    model: Any = theirs.model
    model.rotary_emb = Angles()
    model.norm = norm(model.norm)
    for layer in model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = map(
            norm, (layer.input_layernorm, layer.post_attention_layernorm)
        )
    return theirs


def theirs_on(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    real = tokens >= 0
    positions = (real.cumsum(1) - 1).clamp_min(0)
    return model(input_ids=tokens.clamp_min(0), attention_mask=real.long(), position_ids=positions).logits


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("tie", [False, True])
def test_logits_in_float32(key_heads: int, tie: bool) -> None:
    theirs = peer(torch.float32, key_heads, tie)
    tokens, real = left_padded(VOCAB)
    agree(ours_like(theirs).logits(tokens).y[real], theirs_on(theirs, tokens)[real])


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("tie", [False, True])
def test_logits_in_float64(key_heads: int, tie: bool) -> None:
    theirs = peer(torch.float64, key_heads, tie)
    ours = ours_like(theirs)
    tokens, real = left_padded(VOCAB)
    agree(ours.logits(tokens).y[real], theirs_on(theirs, tokens)[real], 1e-5)
    agree(ours.logits(tokens).y[real], theirs_on(in_float64(theirs), tokens)[real])


def test_decoding_token_by_token() -> None:
    theirs = peer(torch.float64)
    ours = ours_like(theirs)
    tokens, real = left_padded(VOCAB)
    state, steps = ours.start(4, 11, dtype=torch.float64), []
    for column in tokens.split(1, 1):
        out = ours.logits(column, state)
        state = out.state
        steps.append(out.y)
    agree(torch.cat(steps, 1)[real], theirs_on(in_float64(theirs), tokens)[real])


def test_gradients() -> None:
    theirs = in_float64(peer(torch.float64))
    ours: Any = ours_like(theirs)
    tokens = torch.randint(0, VOCAB, (3, 17))
    logits, their_logits = ours.logits(tokens).y, theirs(input_ids=tokens).logits
    towards = torch.randn_like(logits)
    (logits * towards).sum().backward()
    (their_logits * towards).sum().backward()
    model: Any = theirs.model
    agree(ours.embedding.weight.grad, model.embed_tokens.weight.grad)
    agree(gradient(ours.body.layers[0].layers[0].projection, "k"), model.layers[0].self_attn.k_proj.weight.grad)
    agree(ours.body.layers[0].layers[1].gate.weight.grad, model.layers[0].mlp.gate_proj.weight.grad)
    agree(ours.body.layers[1].norms[1].weight.grad, model.layers[1].post_attention_layernorm.weight.grad)


@pytest.mark.parametrize("beam", [1, 4])
def test_generation(beam: int) -> None:
    theirs = peer(torch.float64)
    tokens, real = left_padded(VOCAB)
    ours = generate(ours_like(theirs), tokens, 12, temperature=0, beam=beam)
    rows = theirs.generate(
        input_ids=tokens.clamp_min(0),
        attention_mask=real.long(),
        max_new_tokens=12,
        do_sample=False,
        num_beams=beam,
        pad_token_id=0,
    )
    assert torch.equal(ours[:, 11:], rows[:, 11:])
