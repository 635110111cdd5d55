"""Reformer against Hugging Face's on equal weights and equal rotations, whole: logits, loss and gradients.

Compared is the published form on rows that fill their chunks: local and LSH blocks in turn, their chunks of sorted
tokens with the one before (read whole, and a key counted once for each round, as they do), reversible layers with their
own backward, the norm and the head over both halves. Theirs starts both halves as one embedding: ours has it twice.
Positions are a table, their axial ones are off. Rows that do not fill their chunks are not compared: they put padding
behind each round, we put it behind all of them.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import ReformerConfig, ReformerModelWithLMHead

from kinformer.members.reformer import reformer
from kinformer.models.lm import LM
from tests.parity.peers import agree, copy_weights, gradient, put_qkv, shaken

VOCAB, D, HEADS, WIDTH, CHUNK, LOCAL, LENGTH, SEED = 19, 24, 3, 6, 4, 8, 32, 5
KINDS = [(("local", "lsh", "local", "lsh"), 1), (("local", "lsh"), 3)]


def peer(layers: tuple[str, ...], rounds: int, dtype: torch.dtype) -> ReformerModelWithLMHead:
    config = ReformerConfig(
        vocab_size=VOCAB,
        hidden_size=D,
        num_attention_heads=HEADS,
        attention_head_size=WIDTH,
        feed_forward_size=4 * D,
        attn_layers=list(layers),
        num_buckets=6,
        num_hashes=rounds,
        hash_seed=SEED,
        lsh_attn_chunk_length=CHUNK,
        local_attn_chunk_length=LOCAL,
        axial_pos_embds=False,
        max_position_embeddings=LENGTH,
        is_decoder=True,
        initializer_range=0.3,
        layer_norm_eps=1e-5,
        hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
        use_cache=False,
    )
    return shaken(ReformerModelWithLMHead(config).to(dtype).eval())  # type: ignore[return-value]


def ours_like(theirs: ReformerModelWithLMHead) -> LM:
    config, their, dtype = theirs.config, theirs.reformer, theirs.lm_head.decoder.weight.dtype
    rounds, depth = config.num_hashes, len(config.attn_layers)
    model: Any = reformer(D, depth, HEADS, 6, rounds, LOCAL, CHUNK, LENGTH, VOCAB, tie=False, scale=1.0, head_dim=WIDTH)
    model = model.to(dtype).eval()
    copy_weights(model.embedding, twice(their.embeddings.word_embeddings.weight))
    copy_weights(model.position.table, twice(their.embeddings.position_embeddings.embedding.weight))
    copy_weights(model.body.norm, their.encoder.layer_norm.weight, their.encoder.layer_norm.bias)
    copy_weights(model.head, theirs.lm_head.decoder.weight)
    for block, layer in zip(model.body.layers, their.encoder.layers, strict=True):
        (attention, mlp), inner = block.layers, layer.attention.self_attention
        copy_weights(block.norms[0], layer.attention.layer_norm.weight, layer.attention.layer_norm.bias)
        copy_weights(block.norms[1], layer.feed_forward.layer_norm.weight, layer.feed_forward.layer_norm.bias)
        if hasattr(inner, "query_key"):
            copy_weights(attention.projection.qk, inner.query_key.weight)
            copy_weights(attention.projection.v, inner.value.weight)
            attention.projection.eps = 1e-6 * WIDTH  # theirs is added to the mean square
            torch.manual_seed(SEED)
            attention.mechanism.hash.r = torch.randn(HEADS, WIDTH, rounds, 3, dtype=dtype)
            attention.mechanism.restricted = attention.mechanism.divided = False
        else:
            for name in ("query", "key", "value"):
                put_qkv(attention.projection, name[0], getattr(inner, name).weight)
        copy_weights(attention.aggregation.linear, layer.attention.output.dense.weight)
        copy_weights(mlp.up, layer.feed_forward.dense.dense.weight, layer.feed_forward.dense.dense.bias)
        copy_weights(mlp.down, layer.feed_forward.output.dense.weight, layer.feed_forward.output.dense.bias)
    return model


def twice(x: Tensor) -> Tensor:
    return torch.cat([x, x], 1)


@pytest.mark.parametrize(
    ("layers", "rounds", "dtype"), [(*KINDS[0], torch.float32), *((*kind, torch.float64) for kind in KINDS)]
)
def test_logits(layers: tuple[str, ...], rounds: int, dtype: torch.dtype) -> None:
    """Several rounds in float64 alone: a token that reads itself alone has an lse of -1e5, whose float32 has steps of
    0.008, and their weights of its rounds then add up to 1 within a percent only."""
    theirs = peer(layers, rounds, dtype)
    tokens = torch.randint(0, VOCAB, (3, LENGTH))
    expected = theirs(input_ids=tokens).logits
    agree(ours_like(theirs).logits(tokens).y, expected)
    with torch.no_grad():
        agree(ours_like(theirs).logits(tokens).y, expected)


@pytest.mark.parametrize(("layers", "rounds"), KINDS)
def test_loss_and_gradients(layers: tuple[str, ...], rounds: int) -> None:
    """Each goes back through its own reversible backward."""
    theirs = peer(layers, rounds, torch.float64).train()
    ours: Any = ours_like(theirs).train()
    tokens = torch.randint(0, VOCAB, (3, LENGTH))
    loss = F.cross_entropy(ours.logits(tokens).y[:, :-1].transpose(1, 2), tokens[:, 1:])
    their_loss = F.cross_entropy(theirs(input_ids=tokens).logits[:, :-1].transpose(1, 2), tokens[:, 1:])
    agree(loss, their_loss)
    loss.backward()
    their_loss.backward()
    agree(halves(ours.embedding), theirs.reformer.embeddings.word_embeddings.weight.grad)
    agree(halves(ours.position.table), theirs.reformer.embeddings.position_embeddings.embedding.weight.grad)
    for block, layer in zip(ours.body.layers, theirs.reformer.encoder.layers, strict=True):
        (attention, mlp), inner = block.layers, layer.attention.self_attention
        if hasattr(inner, "query_key"):
            agree(attention.projection.qk.weight.grad, inner.query_key.weight.grad)
            agree(attention.projection.v.weight.grad, inner.value.weight.grad)
        else:
            agree(gradient(attention.projection, "k"), inner.key.weight.grad)
            agree(gradient(attention.projection, "v"), inner.value.weight.grad)
        agree(block.norms[0].bias.grad, layer.attention.layer_norm.bias.grad)
        agree(mlp.up.weight.grad, layer.feed_forward.dense.dense.weight.grad)


def halves(table: Any) -> Tensor:
    """Their one table got what came to both halves."""
    first, second = table.weight.grad.chunk(2, 1)
    return first + second
