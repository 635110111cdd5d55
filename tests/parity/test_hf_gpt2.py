"""GPT against Hugging Face's GPT-2 on equal weights: logits, loss, gradients, padding, greedy and beam search."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from kinformer.decoding.generate import generate
from kinformer.members.gpt import gpt
from kinformer.models.lm import LM
from tests.parity.peers import agree, copy_weights, gradient, left_padded, put_qkv, shaken

VOCAB, D, DEPTH, HEADS, LENGTH = 19, 24, 3, 4, 40


def peer(dtype: torch.dtype) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCAB,
        n_embd=D,
        n_layer=DEPTH,
        n_head=HEADS,
        n_positions=LENGTH,
        initializer_range=0.3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        use_cache=True,
    )
    return shaken(GPT2LMHeadModel(config).to(dtype).eval())  # type: ignore[return-value]


def ours_like(theirs: GPT2LMHeadModel) -> LM:
    model: Any = gpt(d=D, depth=DEPTH, heads=HEADS, length=LENGTH, vocab=VOCAB).to(theirs.dtype).eval()
    copy_weights(model.embedding, theirs.transformer.wte.weight)
    copy_weights(model.position.table, theirs.transformer.wpe.weight)
    copy_weights(model.body.norm, theirs.transformer.ln_f.weight, theirs.transformer.ln_f.bias)
    for block, their in zip(model.body.layers, theirs.transformer.h, strict=True):
        attention, mlp = block.layers
        copy_weights(block.norms[0], their.ln_1.weight, their.ln_1.bias)
        copy_weights(block.norms[1], their.ln_2.weight, their.ln_2.bias)
        qkv = zip(their.attn.c_attn.weight.T.chunk(3), their.attn.c_attn.bias.chunk(3), strict=True)
        for name, (weight, bias) in zip("qkv", qkv, strict=True):
            put_qkv(attention.projection, name, weight, bias)
        copy_weights(attention.aggregation.linear, their.attn.c_proj.weight.T, their.attn.c_proj.bias)
        copy_weights(mlp.up, their.mlp.c_fc.weight.T, their.mlp.c_fc.bias)
        copy_weights(mlp.down, their.mlp.c_proj.weight.T, their.mlp.c_proj.bias)
    return model


def theirs_on(model: GPT2LMHeadModel, tokens: Tensor) -> Tensor:
    real = tokens >= 0
    positions = (real.cumsum(1) - 1).clamp_min(0)
    return model(input_ids=tokens.clamp_min(0), attention_mask=real.long(), position_ids=positions).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits(dtype: torch.dtype) -> None:
    theirs = peer(dtype)
    tokens = torch.randint(0, VOCAB, (3, 17))
    agree(ours_like(theirs).logits(tokens).y, theirs(input_ids=tokens).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_left_padded_logits(dtype: torch.dtype) -> None:
    theirs = peer(dtype)
    tokens, real = left_padded(VOCAB)
    agree(ours_like(theirs).logits(tokens).y[real], theirs_on(theirs, tokens)[real])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decoding_token_by_token(dtype: torch.dtype) -> None:
    theirs = peer(dtype)
    ours = ours_like(theirs)
    tokens, real = left_padded(VOCAB)
    state, steps = ours.start(4, 11, dtype=dtype), []
    for column in tokens.split(1, 1):
        out = ours.logits(column, state)
        state = out.state
        steps.append(out.y)
    agree(torch.cat(steps, 1)[real], theirs_on(theirs, tokens)[real])


def test_loss_and_gradients() -> None:
    theirs = peer(torch.float64)
    ours: Any = ours_like(theirs)
    tokens = torch.randint(0, VOCAB, (3, 17))
    loss = ours(tokens)
    # not their own loss, which is taken of logits rounded to float32
    their_loss = F.cross_entropy(theirs(input_ids=tokens).logits[:, :-1].transpose(1, 2), tokens[:, 1:])
    agree(loss.total, their_loss)
    loss.total.backward()
    their_loss.backward()
    agree(ours.embedding.weight.grad, theirs.transformer.wte.weight.grad)
    agree(ours.position.table.weight.grad, theirs.transformer.wpe.weight.grad)
    first, their_first = ours.body.layers[0], theirs.transformer.h[0]
    agree(first.layers[1].up.weight.grad.T, their_first.mlp.c_fc.weight.grad)
    agree(gradient(first.layers[0].projection, "v").T, their_first.attn.c_attn.weight.grad.chunk(3, 1)[2])


# Generation ----------------------------------------------------------------------------------------------------------


def their_generate(model: GPT2LMHeadModel, tokens: Tensor, steps: int, stop: int | None, **keywords: Any) -> Tensor:
    """Hugging Face's rows, with our -1 for its padding before the prompt and after the end."""
    real = tokens >= 0
    rows = model.generate(
        input_ids=tokens.clamp_min(0),
        attention_mask=real.long(),
        max_new_tokens=steps,
        do_sample=False,
        eos_token_id=stop,
        pad_token_id=0,
        **keywords,
    )
    rows = F.pad(rows, (0, tokens.shape[1] + steps - rows.shape[1]), value=-1)
    new = rows[:, tokens.shape[1] :]
    if stop is not None:
        after = (new == stop).cumsum(1) - (new == stop).long() > 0
        new = new.masked_fill(after, -1)
    return torch.cat([tokens, new], 1)


@pytest.mark.parametrize("stop", [None, 3, 7])
def test_greedy(stop: int | None) -> None:
    theirs = peer(torch.float64)
    tokens, _ = left_padded(VOCAB)
    ours = generate(ours_like(theirs), tokens, 14, temperature=0, stop=stop)
    assert torch.equal(ours, their_generate(theirs, tokens, 14, stop))


@pytest.mark.parametrize("beam", [2, 3, 6])
def test_beam_search_without_an_end(beam: int) -> None:
    theirs = peer(torch.float64)
    tokens, _ = left_padded(VOCAB)
    ours = generate(ours_like(theirs), tokens, 12, beam=beam)
    assert torch.equal(ours, their_generate(theirs, tokens, 12, None, num_beams=beam))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("beam", [2, 3, 6])
def test_beam_search_with_an_end(beam: int, seed: int) -> None:
    """length_penalty=0 is the plain sum of log-probabilities that ours maximises; theirs divides by the length."""
    torch.manual_seed(seed)
    theirs = peer(torch.float64)
    tokens, _ = left_padded(VOCAB)
    ours = generate(ours_like(theirs), tokens, 8, beam=beam, stop=5)
    plain = {"length_penalty": 0.0, "early_stopping": False}
    assert torch.equal(ours, their_generate(theirs, tokens, 8, 5, num_beams=beam, **plain))
