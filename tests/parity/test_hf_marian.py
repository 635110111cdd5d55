"""Seq2Seq against Hugging Face's Marian on equal weights: logits, greedy and beam search from a source read once.

Marian is the 2017 Transformer with silu or relu, a head bias, and a begin token that is also its padding. Its table of
positions is filled anew in float64, and its head bias forbids begin, which ours has no logit for.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from kinformer.decoding.generate import generate
from kinformer.members.transformer import transformer
from kinformer.models.seq2seq import Seq2Seq
from tests.parity.peers import agree, copy_weights, put_qkv, shaken

VOCAB, D, DEPTH, HEADS, HIDDEN = 13, 24, 2, 4, 40
END, BEGIN = VOCAB, VOCAB + 1


def peer(dtype: torch.dtype) -> MarianMTModel:
    config = MarianConfig(
        vocab_size=VOCAB + 2,
        decoder_vocab_size=VOCAB + 2,
        d_model=D,
        encoder_layers=DEPTH,
        decoder_layers=DEPTH,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        activation_function="relu",
        max_position_embeddings=32,
        scale_embedding=True,
        dropout=0.0,
        init_std=0.15,
        pad_token_id=BEGIN,
        decoder_start_token_id=BEGIN,
        eos_token_id=END,
        forced_eos_token_id=None,
    )
    return shaken(MarianMTModel(config).to(dtype).eval())  # type: ignore[return-value]


def ours_like(theirs: Any) -> Seq2Seq:
    model: Any = transformer(d=D, depth=DEPTH, heads=HEADS, hidden=HIDDEN, vocab=VOCAB, position="sines_first")
    model.to(theirs.dtype).eval()
    # large embeddings and a head of its own, or an untrained model would say one token for ever
    with torch.no_grad():
        theirs.model.shared.weight.mul_(3)
    copy_weights(model.embedding, theirs.model.shared.weight)
    model.head.weight = nn.Parameter(torch.randn_like(theirs.lm_head.weight))
    theirs.lm_head.weight = nn.Parameter(model.head.weight.detach().clone())
    for stack, their_stack in ((model.encoder, theirs.model.encoder), (model.decoder, theirs.model.decoder)):
        to_the_last_digit(their_stack.embed_positions.weight)
        for block, their in zip(stack.layers, their_stack.layers, strict=True):
            *attentions, mlp = block.layers
            their_attentions = [their.self_attn, *([their.encoder_attn] if len(attentions) == 2 else [])]
            for attention, their_attention in zip(attentions, their_attentions, strict=True):
                for name in ("q", "k", "v"):
                    linear = getattr(their_attention, f"{name}_proj")
                    put_qkv(attention.projection, name, linear.weight, linear.bias)
                copy_weights(
                    attention.aggregation.linear, their_attention.out_proj.weight, their_attention.out_proj.bias
                )
            copy_weights(mlp.up, their.fc1.weight, their.fc1.bias)
            copy_weights(mlp.down, their.fc2.weight, their.fc2.bias)
            norms = [their.self_attn_layer_norm, their.final_layer_norm]
            if len(attentions) == 2:
                norms.insert(1, their.encoder_attn_layer_norm)
            for norm, their_norm in zip(block.norms, norms, strict=True):
                copy_weights(norm, their_norm.weight, their_norm.bias)
    theirs.final_logits_bias.zero_()
    theirs.final_logits_bias[:, BEGIN] = -torch.inf
    return model


def to_the_last_digit(table: Tensor) -> None:
    """Their table, which was made in float32, in the model's precision: sin, then cos, of pos / 10000^(2n/d)."""
    half = [[pos / 10000 ** (2 * n / D) for n in range(D // 2)] for pos in range(len(table))]
    expected = [[*map(math.sin, row), *map(math.cos, row)] for row in half]
    exact = torch.tensor(expected, dtype=torch.float64)
    assert (table.double() - exact).abs().max() < 1e-5
    with torch.no_grad():
        table.copy_(exact)


def sources() -> Tensor:
    source = torch.randint(0, VOCAB, (4, 9))
    for row, length in enumerate((9, 4, 1, 6)):
        source[row, length:] = -1
    return source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits(dtype: torch.dtype) -> None:
    theirs = peer(dtype)
    ours = ours_like(theirs)
    source, target = sources(), torch.randint(0, VOCAB, (4, 6))
    target[:, 0] = BEGIN
    y = theirs(input_ids=source.clamp_min(0), attention_mask=(source >= 0).long(), decoder_input_ids=target).logits
    agree(ours.logits(target, source=source).y, y[..., : VOCAB + 1])


def their_generate(theirs: Any, source: Tensor, steps: int, beam: int) -> Tensor:
    rows = theirs.generate(
        input_ids=source.clamp_min(0),
        attention_mask=(source >= 0).long(),
        max_new_tokens=steps,
        do_sample=False,
        num_beams=beam,
        **({"length_penalty": 0.0, "early_stopping": False} if beam > 1 else {}),
    )[:, 1:]
    rows = rows.masked_fill(rows == BEGIN, -1)
    return F.pad(rows, (0, steps - rows.shape[1]), value=-1)


@pytest.mark.parametrize("seed", range(4))
def test_greedy(seed: int) -> None:
    torch.manual_seed(seed)
    theirs = peer(torch.float64)
    ours, source = ours_like(theirs), sources()
    assert torch.equal(generate(ours, None, 12, source=source, temperature=0), their_generate(theirs, source, 12, 1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam", [2, 4])
def test_beam_search(beam: int, seed: int) -> None:
    torch.manual_seed(seed)
    theirs = peer(torch.float64)
    ours, source = ours_like(theirs), sources()
    assert torch.equal(generate(ours, None, 9, source=source, beam=beam), their_generate(theirs, source, 9, beam))
